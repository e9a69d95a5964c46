/*
 * parse.c - what a request's body costs the loop: the core's work on it, in one piece, by its parts.
 *
 *   parse [KB ...]      sizes of the bodies (default 128 512 1000 8000 20000); the best of 9 rounds
 *
 * "parse" is agent_input_parse(), the one parse of a body; "pair" orders calls and results; "request" makes
 * the model's body; "free" lets go of it all. Times are in ms.
 */
#include "agent_codec.h"
#include "agent_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

#define HEAD "{\"threadId\":\"t\",\"runId\":\"r\",\"messages\":["
#define USER "{\"id\":\"u\",\"role\":\"user\",\"content\":\"x\"}"
#define TAIL ",\"tools\":[],\"context\":[],\"forwardedProps\":{}}"

enum { TEXT, CHAT, MESSAGES, CALLS, IMAGE, STATE, NUMBERS, KINDS };
static const char *const names[KINDS] = { "a text", "a chat", "tiny messages", "tool calls", "an image", "state: strings", "state: numbers" };

static void add(agent_buf_t *b, const char *s) { agent_buf_add(b, s, strlen(s)); }

static void body(agent_buf_t *b, int kind, size_t size)
{
    char s[512]; unsigned i;
    add(b, HEAD);
    switch (kind) {
    case TEXT: case IMAGE:
        add(b, kind == TEXT ? "{\"id\":\"u\",\"role\":\"user\",\"content\":\""
            : "{\"id\":\"u\",\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"data\",\"mimeType\":\"image/png\",\"value\":\"");
        while (b->len < size) add(b, kind == TEXT ? "hello wo" : "iVBORw0K");
        add(b, kind == TEXT ? "\"}" : "\"}}]}");
        break;
    case CHAT:                       /* answers of about 500 bytes, as chats are */
        for (i = 0; b->len < size; i++) {
            sprintf(s, "%s{\"id\":\"msg-%u\",\"role\":\"%s\",\"content\":\"", i ? "," : "", i, i % 2 ? "assistant" : "user");
            add(b, s);
            for (int k = 0; k < (i % 2 ? 12 : 2); k++) add(b, "Some words of an ordinary sentence in a chat. \\n");
            add(b, "\"}");
        }
        break;
    case MESSAGES:
        for (i = 0; b->len < size; i++) { sprintf(s, "%s{\"id\":\"m%u\",\"role\":\"user\",\"content\":\"%u\"}", i ? "," : "", i, i); add(b, s); }
        break;
    case CALLS:
        for (i = 0; b->len < size; i++) {
            sprintf(s, "{\"id\":\"a%u\",\"role\":\"assistant\",\"toolCalls\":[{\"id\":\"c%u\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},", i, i);
            add(b, s);
        }
        add(b, USER);
        break;
    default:
        add(b, USER);
    }
    add(b, "],\"state\":[");
    if (kind == STATE || kind == NUMBERS) {
        for (i = 0; b->len < size; i++) { if (i) add(b, ","); add(b, kind == STATE ? "\"0123456789012345678\"" : "1"); }
    }
    add(b, "]" TAIL);
}

int main(int argc, char **argv)
{
    static const char *const sizes[] = { "128", "512", "1000", "8000", "20000" };
    const agent_codec_t *codec = agent_codec_find((agent_str_t) AGENT_STR("openai"));
    int n = argc > 1 ? argc - 1 : 5;
    printf("| body | KB | parse | pair | request | free | all ms | MB/s |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int kind = 0; kind < KINDS; kind++) for (int k = 0; k < n; k++) {
        size_t kb = strtoul(argc > 1 ? argv[k + 1] : sizes[k], NULL, 10);
        double best[5] = { 1e9, 1e9, 1e9, 1e9, 1e9 }; int bad = 0;
        agent_buf_t b; agent_buf_init(&b, &agent_alloc_libc);
        body(&b, kind, kb * 1000);
        for (int round = 0; round < 9; round++) {
            agent_input_t in; agent_fault_t fault; agent_buf_t out; agent_request_t req; double t[5];
            agent_input_rules_t rules = { ~0u, 1, 128, 1000000, 0 };
            agent_buf_init(&out, &agent_alloc_libc); memset(&req, 0, sizeof req);
            t[0] = now_ms();
            bad |= agent_input_parse(&in, agent_buf_str(&b), &rules, &agent_alloc_libc, &fault) != AGENT_OK;
            t[1] = now_ms();
            bad |= bad || agent_input_pair(&in, &fault) != AGENT_OK;
            t[2] = now_ms();
            if (!bad) {
                req.model = (agent_str_t) AGENT_STR("m"); req.messages = in.messages; req.nmessages = in.nmessages;
                bad |= codec->request(&out, &req, &fault) != AGENT_OK;
            }
            t[3] = now_ms();
            agent_input_free(&in); agent_buf_free(&out);
            t[4] = now_ms();
            if (t[4] - t[0] < best[4]) { best[4] = t[4] - t[0]; for (int i = 0; i < 4; i++) best[i] = t[i + 1] - t[i]; }
        }
        if (bad) printf("| %s | %zu | refused |\n", names[kind], kb);
        else printf("| %s | %zu | %.2f | %.2f | %.2f | %.2f | %.1f | %.0f |\n", names[kind], kb, best[0], best[1], best[2], best[3], best[4], b.len / 1e3 / best[4]);
        agent_buf_free(&b);
    }
}
