/* agent_json.c: tables for the rules, jansson as a second opinion on random
 * bytes, broken input in blocks of exactly its length. */

#include "agent_json.h"
#include "tap.h"

#include <stdlib.h>

/* --- helpers -------------------------------------------------------------- */

static uint64_t seed = 88172645463325252;

static uint64_t
rnd(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;

    return seed % n;
}

/* Moves text into a block of exactly its length: ASan sees a byte too far. */
static agent_str_t
exact(agent_str_t s)
{
    char *copy = malloc(s.len ? s.len : 1);

    if (s.len != 0) {
        memcpy(copy, s.data, s.len);
    }

    s.data = copy;

    return s;
}

static void
release(agent_str_t s)
{
    free((void *) (uintptr_t) s.data);
}

static agent_str_t
str(const char *p)
{
    agent_str_t s = {p, strlen(p)};

    return s;
}

typedef void (*writer_pt)(agent_buf_t *b, agent_str_t s);

/* What a writer makes of a text, as a new buffer. */
static agent_buf_t
written(writer_pt write, agent_str_t s)
{
    agent_buf_t b;
    agent_str_t in = exact(s);

    agent_buf_init(&b, &agent_alloc_libc);
    write(&b, in);
    release(in);

    return b;
}

static void
check_writer(writer_pt write, const char *what, agent_str_t in,
             agent_str_t want)
{
    agent_buf_t b = written(write, in);

    is_bytes(b.data, b.len, want.data, want.len, what);
    agent_buf_free(&b);
}

static int
is_escaped(agent_str_t s)
{
    agent_str_t in = exact(s);
    int yes = agent_json_is_escaped(in);

    release(in);

    return yes;
}

/* Random bytes with a liking for what matters. */
static void
random_text(agent_buf_t *b, size_t max)
{
    static const agent_str_t words[] = {
        agent_str("\\"),           agent_str("\\\\"),
        agent_str("\\\""),         agent_str("\""),
        agent_str("\\u0041"),      agent_str("\\u"),
        agent_str("\\uD83D"),      agent_str("\\ud83d\\ude00"),
        agent_str("\\uDE00"),      agent_str("\\u0000"),
        agent_str("\\n\\/\\b"),    agent_str("\\x"),
        agent_str("\xf0\x9f\x98"), agent_str("\xf0\x9f\x98\x80"),
        agent_str("\xe2\x82\xac"), agent_str("\xc3\xa4"),
        agent_str("\xed\xa0\x80"), agent_str("\xc0\xaf"),
        agent_str("plain ASCII"),  agent_str("0123456789abcdef"),
        agent_str("\0"),           agent_str("\n"),
        agent_str("\x7f"),         agent_str("\x1f"),
        agent_str("\xef\xbf\xbf"), agent_str("\xf4\x8f\xbf\xbf"),
    };
    size_t n = rnd(max);
    char c;

    agent_buf_init(b, &agent_alloc_libc);
    agent_buf_reserve(b, 1);

    while (n-- > 0) {
        if (rnd(4) == 0) {
            c = (char) rnd(256);
            agent_buf_add(b, &c, 1);
        } else {
            agent_buf_add_str(b, words[rnd(sizeof(words) / sizeof(words[0]))]);
        }
    }
}

/* jansson's reading of the inside of a string, NULL when it refuses it. */
static json_t *
jansson_string(agent_str_t inside)
{
    agent_buf_t b;
    json_t *array, *string = NULL;

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add_lit(&b, "[\"");
    agent_buf_add_str(&b, inside);
    agent_buf_add_lit(&b, "\"]");

    array = json_loadb(b.data, b.len, JSON_ALLOW_NUL, NULL);

    if (array != NULL && json_array_size(array) == 1) {
        string = json_incref(json_array_get(array, 0));
    }

    json_decref(array);
    agent_buf_free(&b);

    return string;
}

/* --- UTF-8 ---------------------------------------------------------------- */

#define R "\xef\xbf\xbd"

static const struct {
    const char *name;
    agent_str_t in, want;
    size_t valid;
} utf8[] = {
    {"empty", agent_str(""), agent_str(""), 0},
    {"ASCII", agent_str("a\0b\x7f"), agent_str("a\0b\x7f"), 4},
    {"all lengths", agent_str("a\xc2\x80\xe0\xa0\x80\xf0\x90\x80\x80"),
     agent_str("a\xc2\x80\xe0\xa0\x80\xf0\x90\x80\x80"), 10},
    {"the last of each", agent_str("\x7f\xdf\xbf\xef\xbf\xbf\xf4\x8f\xbf\xbf"),
     agent_str("\x7f\xdf\xbf\xef\xbf\xbf\xf4\x8f\xbf\xbf"), 10},
    {"around the surrogates", agent_str("\xed\x9f\xbf\xee\x80\x80"),
     agent_str("\xed\x9f\xbf\xee\x80\x80"), 6},
    {"non-shortest forms", agent_str("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
     agent_str(R R R R R R R R "A"), 0},
    {"surrogates", agent_str("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"),
     agent_str(R R R R R R R R "A"), 0},
    {"other ill-formed", agent_str("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"),
     agent_str(R R R R R "A" R R "B"), 0},
    {"truncated", agent_str("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"),
     agent_str(R R R R "A"), 0},
    {"truncated at the end", agent_str("12345678\xf0\x9f\x98"),
     agent_str("12345678" R), 8},
    {"a lead byte at the end", agent_str("\xc3\xa4\xc3"),
     agent_str("\xc3\xa4" R), 2},
    {"a continuation byte", agent_str("0123456789\x80z"),
     agent_str("0123456789" R "z"), 10},
};

static void
test_utf8(void)
{
    size_t i;
    agent_str_t in;

    for (i = 0; i < sizeof(utf8) / sizeof(utf8[0]); i++) {
        check_writer(agent_utf8_sanitize, utf8[i].name, utf8[i].in,
                     utf8[i].want);
        in = exact(utf8[i].in);
        ok(agent_utf8_valid(in) == utf8[i].valid, "%s: valid prefix",
           utf8[i].name);
        release(in);
    }
}

/* Every sequence of up to three bytes against jansson, without the first byte
 * that JSON itself minds. */
static void
test_utf8_all(void)
{
    unsigned a, b, c;
    int fine = 1;
    char bytes[3];
    agent_str_t s = {bytes, 3};
    json_t *string;

    for (a = 0x7f; a < 0x100 && fine; a++) {
        for (b = 0x70; b < 0x100; b++) {
            for (c = 0x7f; c < 0x100; c += 0x41) {
                bytes[0] = (char) a;
                bytes[1] = (char) b;
                bytes[2] = (char) c;
                string = jansson_string(s);
                fine = fine && (string != NULL) == is_escaped(s) &&
                       (string != NULL) == (agent_utf8_valid(s) == 3);
                json_decref(string);
            }
        }
    }

    ok(fine, "three bytes are valid when jansson says so");
}

/* --- escaped text --------------------------------------------------------- */

static const struct {
    const char *name;
    agent_str_t plain, escaped;
} escapes[] = {
    {"empty", agent_str(""), agent_str("")},
    {"plain", agent_str("Hello, world / \x7f"),
     agent_str("Hello, world / \x7f")},
    {"short escapes", agent_str("\"\\\b\f\n\r\t"),
     agent_str("\\\"\\\\\\b\\f\\n\\r\\t")},
    {"controls", agent_str("\0\x01\x0b\x0e\x1f"),
     agent_str("\\u0000\\u0001\\u000b\\u000e\\u001f")},
    {"UTF-8 stays", agent_str("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
     agent_str("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80")},
    {"separators stay", agent_str("\xe2\x80\xa8\xe2\x80\xa9\xc2\x85"),
     agent_str("\xe2\x80\xa8\xe2\x80\xa9\xc2\x85")},
    {"mixed", agent_str("0123456789\n\xc3\xa4\"01234567\\"),
     agent_str("0123456789\\n\xc3\xa4\\\"01234567\\\\")},
};

static void
test_escape(void)
{
    size_t i;

    for (i = 0; i < sizeof(escapes) / sizeof(escapes[0]); i++) {
        check_writer(agent_json_escape, escapes[i].name, escapes[i].plain,
                     escapes[i].escaped);
        ok(is_escaped(escapes[i].escaped), "%s: is escaped", escapes[i].name);
    }

    check_writer(agent_json_escape, "invalid UTF-8 is replaced",
                 AGENT_STR("a\xff\xe2\x82z"), AGENT_STR("a" R R "z"));
    check_writer(agent_json_quote, "quoted", AGENT_STR("a\"b"),
                 AGENT_STR("\"a\\\"b\""));
    check_writer(agent_json_quote, "quoted nothing", AGENT_STR(""),
                 AGENT_STR("\"\""));
}

static const struct {
    agent_str_t in;
    int good;
    agent_str_t want;
} unescapes[] = {
    {agent_str(""), 1, agent_str("")},
    {agent_str("\\/\\\"\\\\"), 1, agent_str("/\"\\")},
    {agent_str("\\b\\f\\n\\r\\t"), 1, agent_str("\b\f\n\r\t")},
    {agent_str("\\u0041\\u00e4\\u20AC"), 1, agent_str("A\xc3\xa4\xe2\x82\xac")},
    {agent_str("\\u0000"), 1, agent_str("\0")},
    {agent_str("\\uD83D\\uDe00"), 1, agent_str("\xf0\x9f\x98\x80")},
    {agent_str("\\ud800\\udc00\\udbff\\udfff"), 1,
     agent_str("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf")},
    {agent_str("\\ud7ff\\ue000\\uffff"), 1,
     agent_str("\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf")},
    {agent_str("\\\\ud83d"), 1, agent_str("\\ud83d")},
    {agent_str("\\"), 0, agent_str("")},
    {agent_str("\\\\\\"), 0, agent_str("")},
    {agent_str("\""), 0, agent_str("")},
    {agent_str("01234567\n"), 0, agent_str("")},
    {agent_str("\0"), 0, agent_str("")},
    {agent_str("\\a"), 0, agent_str("")},
    {agent_str("\\U0041"), 0, agent_str("")},
    {agent_str("\\'"), 0, agent_str("")},
    {agent_str("\\u"), 0, agent_str("")},
    {agent_str("\\u123"), 0, agent_str("")},
    {agent_str("\\u12g4"), 0, agent_str("")},
    {agent_str("\\u 123"), 0, agent_str("")},
    {agent_str("\\ud83d"), 0, agent_str("")},
    {agent_str("\\ud83d\\"), 0, agent_str("")},
    {agent_str("\\ud83d\\ude0"), 0, agent_str("")},
    {agent_str("\\ud83dxxxxxx"), 0, agent_str("")},
    {agent_str("\\ud83d\\n12345"), 0, agent_str("")},
    {agent_str("\\ud83d\\u0041"), 0, agent_str("")},
    {agent_str("\\ud83d\\ud83d"), 0, agent_str("")},
    {agent_str("\\ude00"), 0, agent_str("")},
    {agent_str("\\ude00\\ud83d"), 0, agent_str("")},
    {agent_str("a\xff"), 0, agent_str("")},
    {agent_str("\xed\xa0\x80"), 0, agent_str("")},
    {agent_str("\\\xc3\xa4"), 0, agent_str("")},
};

static void
test_unescape(void)
{
    size_t i;
    agent_rc_t rc;
    agent_buf_t b;
    agent_str_t in;

    for (i = 0; i < sizeof(unescapes) / sizeof(unescapes[0]); i++) {
        in = exact(unescapes[i].in);
        agent_buf_init(&b, &agent_alloc_libc);
        agent_buf_add_lit(&b, ">");
        rc = agent_json_unescape(&b, in);

        ok(rc == (unescapes[i].good ? AGENT_OK : AGENT_INVALID) &&
               agent_json_is_escaped(in) == unescapes[i].good,
           "unescape case %zu: code", i);
        is_bytes(b.data + 1, b.len - 1, unescapes[i].want.data,
                 unescapes[i].want.len, "and bytes");
        agent_buf_free(&b);
        release(in);
    }
}

/* One random text through everything that reads or writes strings. */
static int
round_trip(agent_str_t s)
{
    int fine, escaped = agent_json_is_escaped(s);
    json_t *string = jansson_string(s);
    agent_buf_t clean, out, back;

    /* as escaped text: what jansson says */

    agent_buf_init(&back, &agent_alloc_libc);
    fine = escaped == (string != NULL);
    fine = fine && agent_json_unescape(&back, s) ==
                       (escaped ? AGENT_OK : AGENT_INVALID);

    if (fine && escaped) {
        fine = back.len == json_string_length(string) &&
               (back.len == 0 ||
                memcmp(back.data, json_string_value(string), back.len) == 0);
    }

    agent_buf_free(&back);
    json_decref(string);

    /* as plain text: escaping and unescaping repairs UTF-8, no more */

    clean = written(agent_utf8_sanitize, s);
    out = written(agent_json_escape, s);
    agent_buf_init(&back, &agent_alloc_libc);

    fine = fine && agent_utf8_valid(agent_buf_str(&clean)) == clean.len &&
           agent_json_is_escaped(agent_buf_str(&out)) &&
           agent_json_unescape(&back, agent_buf_str(&out)) == AGENT_OK &&
           agent_str_eq(agent_buf_str(&back), agent_buf_str(&clean));

    agent_buf_free(&clean);
    agent_buf_free(&out);
    agent_buf_free(&back);

    return fine;
}

static void
test_round_trips(void)
{
    int i, fine = 1, valid = 0;
    agent_buf_t b;
    agent_str_t in;

    for (i = 0; i < 100000 && fine; i++) {
        random_text(&b, i % 4 ? 4 : 20);
        in = exact(agent_buf_str(&b));
        valid += agent_json_is_escaped(in);
        fine = round_trip(in);
        release(in);
        agent_buf_free(&b);
    }

    ok(fine, "random texts, as jansson reads them");
    ok(valid > 1000 && valid < 99000, "%d of them were escaped text", valid);
}

/* --- cuts ----------------------------------------------------------------- */

static const struct {
    agent_str_t in;
    size_t max, want;
} cuts[] = {
    {agent_str(""), 0, 0},
    {agent_str("abc"), 0, 0},
    {agent_str("abc"), 2, 2},
    {agent_str("abc"), 3, 3},
    {agent_str("abc"), 9, 3},
    {agent_str("a\\nb"), 2, 1},
    {agent_str("a\\nb"), 3, 3},
    {agent_str("a\\\\\\\\n"), 4, 3},
    {agent_str("a\\\\\\\\n"), 5, 5},
    {agent_str("\\u0041z"), 5, 0},
    {agent_str("\\u0041z"), 6, 6},
    {agent_str("\xe2\x82\xacz"), 2, 0},
    {agent_str("\xe2\x82\xacz"), 3, 3},
    {agent_str("x\xf0\x9f\x98\x80z"), 4, 1},
    {agent_str("x\xf0\x9f\x98\x80z"), 5, 5},
    {agent_str("x\\ud83d\\ude00z"), 7, 1},
    {agent_str("x\\ud83d\\ude00z"), 12, 1},
    {agent_str("x\\ud83d\\ude00z"), 13, 13},
    {agent_str("\\ud83d\\ude00"), 11, 0},
    {agent_str("\\ud83d\\ude00"), 12, 12},
};

/* Cuts an escaped text into pieces of at most max bytes. */
static int
cut_up(agent_str_t s, size_t max)
{
    size_t n, shortest = max < 12 ? 1 : max - 11;
    agent_str_t piece;

    while (s.len > 0) {
        n = agent_json_cut(s, max);
        piece.data = s.data;
        piece.len = n;

        if (n == 0 || n > max || !agent_json_is_escaped(piece) ||
            (n < s.len && n < shortest)) {
            return 0;
        }

        s.data += n;
        s.len -= n;
    }

    return 1;
}

static void
test_cuts(void)
{
    size_t i;
    int fine = 1, tried = 0;
    agent_buf_t b;
    agent_str_t in;

    for (i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        in = exact(cuts[i].in);
        ok(agent_json_cut(in, cuts[i].max) == cuts[i].want, "cut case %zu: %zu",
           i, agent_json_cut(in, cuts[i].max));
        release(in);
    }

    for (i = 0; i < 200000 && fine; i++) {
        random_text(&b, 10);

        if (agent_json_is_escaped(agent_buf_str(&b))) {
            in = exact(agent_buf_str(&b));
            fine = cut_up(in, 12 + rnd(12));
            release(in);
            tried++;
        }

        agent_buf_free(&b);
    }

    ok(fine && tried > 1000, "%d texts cut up", tried);
}

/* --- repair --------------------------------------------------------------- */

static const struct {
    const char *name;
    agent_str_t in, want;
} repairs[] = {
    {"nothing to do", agent_str("{\"a\": [1, -2.5e3, true, \"\\u00e4\"]}"),
     agent_str("{\"a\": [1, -2.5e3, true, \"\\u00e4\"]}")},
    {"empty", agent_str(""), agent_str("")},
    {"NaN", agent_str("[NaN,-NaN]"), agent_str("[null,-null]")},
    {"infinities", agent_str("{\"a\":Infinity,\"b\":-Infinity , \"c\":-1}"),
     agent_str("{\"a\":null,\"b\":null , \"c\":-1}")},
    {"not in strings", agent_str("[\"NaN\",\"-Infinity\",\"\\\"NaN\"]"),
     agent_str("[\"NaN\",\"-Infinity\",\"\\\"NaN\"]")},
    {"not half of one", agent_str("[Na,-,-I,I"), agent_str("[Na,-,-I,I")},
    {"raw controls", agent_str("[\"a\tb\nc\x01\0\"]"),
     agent_str("[\"a\\tb\\nc\\u0001\\u0000\"]")},
    {"space between values stays", agent_str("[\t1,\n2]"),
     agent_str("[\t1,\n2]")},
    {"lone high", agent_str("[\"\\ud83d x\"]"), agent_str("[\"\\ufffd x\"]")},
    {"lone low", agent_str("[\"\\uDE00\"]"), agent_str("[\"\\ufffd\"]")},
    {"two highs, one low", agent_str("[\"\\ud83d\\ud83d\\ude00\"]"),
     agent_str("[\"\\ufffd\\ud83d\\ude00\"]")},
    {"a high before an escape", agent_str("[\"\\ud83d\\n\"]"),
     agent_str("[\"\\ufffd\\n\"]")},
    {"a pair stays", agent_str("[\"\\ud83d\\ude00\"]"),
     agent_str("[\"\\ud83d\\ude00\"]")},
    {"an escaped backslash", agent_str("[\"\\\\ud83d\"]"),
     agent_str("[\"\\\\ud83d\"]")},
    {"invalid UTF-8", agent_str("[\"a\xff\xe2\x82\"]"),
     agent_str("[\"a" R R "\"]")},
    {"also between values", agent_str("[\xff 1]"), agent_str("[" R " 1]")},
    {"CESU-8", agent_str("[\"\xed\xa0\xbd\xed\xb8\x80\"]"),
     agent_str("[\"" R R R R R R "\"]")},
    {"bad escapes stay bad", agent_str("[\"\\x\\u12\"]"),
     agent_str("[\"\\x\\u12\"]")},
    {"an escaped raw LF stays bad", agent_str("[\"\\\n\"]"),
     agent_str("[\"\\\n\"]")},
    {"an escaped letter stays bad", agent_str("[\"\\\xc3\xa4\"]"),
     agent_str("[\"\\\xc3\xa4\"]")},
    {"a backslash at the end", agent_str("[\"\\"), agent_str("[\"\\")},
    {"an open string", agent_str("[\"a\t"), agent_str("[\"a\\t")},
};

static void
test_repair(void)
{
    size_t i;
    int n, fine = 1;
    agent_buf_t b, out;
    agent_str_t s;
    json_t *root;

    for (i = 0; i < sizeof(repairs) / sizeof(repairs[0]); i++) {
        check_writer(agent_json_sanitize, repairs[i].name, repairs[i].in,
                     repairs[i].want);
    }

    /* whatever jansson takes stays as it is; repair is idempotent */

    for (n = 0; n < 50000 && fine; n++) {
        random_text(&b, 8);
        agent_buf_add_lit(&b, "\"]");
        memmove(b.data + 2, b.data, b.len - 2);
        memcpy(b.data, "[\"", 2);
        agent_buf_add_lit(&b, "\"]");

        s = agent_buf_str(&b);
        root = json_loadb(s.data, s.len, JSON_ALLOW_NUL, NULL);
        out = written(agent_json_sanitize, s);
        fine = root == NULL || agent_str_eq(agent_buf_str(&out), s);
        json_decref(root);

        agent_buf_free(&b);
        b = written(agent_json_sanitize, agent_buf_str(&out));
        fine = fine && agent_str_eq(agent_buf_str(&out), agent_buf_str(&b));
        agent_buf_free(&b);
        agent_buf_free(&out);
    }

    ok(fine, "repair leaves good JSON alone and is idempotent");
}

/* --- trees ---------------------------------------------------------------- */

static const struct {
    const char *text, *message;
} faults[] = {
    {"", "the body is empty"},
    {" ", "the body is not valid JSON: '[' or '{' expected near end of file at "
          "line 1, column 1"},
    {"{", "the body is not valid JSON: string or '}' expected near end of file "
          "at line 1, column 1"},
    {"\n[1,\n 2,,]", "the body is not valid JSON: unexpected token at line 3, "
                     "column 4"},
    {"SECRET", "the body is not valid JSON: '[' or '{' expected at line 1, "
               "column 6"},
    {"\"SECRET\"", "the body is not valid JSON: '[' or '{' expected at line 1, "
                   "column 8"},
    {"{\"a\":SECRET}",
     "the body is not valid JSON: invalid token at line 1, column 11"},
    {"{\"SECRET\":1,\"SECRET\":2}",
     "the body is not valid JSON: duplicate object key at line 1, column 20"},
    {"[\"\\uSECRET\"]",
     "the body is not valid JSON: invalid escape at line 1, column 5"},
};

/* Bodies that are wrong in every way jansson knows, with a secret around. */
static const char *const leaks[] = {
    "SECRET",
    "[SECRET",
    "[\"SECRET",
    "[\"\\SECRET\"]",
    "[\"\\uSECRET\"]",
    "[\"SECRET\\ud83d\"]",
    "[\"\\ud83dSECRET\"]",
    "[\"\\ud83d\\uSECRET\"]",
    "[\"\\ud83d\\u0041SECRET\"]",
    "[\"\\ude00SECRET\"]",
    "[\"\xff SECRET\"]",
    "[\"SECRET\xff\"]",
    "[\"SECRET\n\"]",
    "[\"SECRET\x01\"]",
    "[1] SECRET",
    "[1 SECRET]",
    "{SECRET:1}",
    "{\"SECRET\" 1}",
    "{\"SECRET\":}",
    "{\"SECRET\":1",
    "{\"SECRET\":1,\"SECRET\":1}",
    "{\"SECRET\\u0000\":1}",
    "[-SECRET]",
    "[0SECRET]",
    "[1.SECRET]",
    "[1eSECRET]",
    "[\"SECRET\",1e999]",
    "[\"' near 'SECRET' near '\" SECRET]",
};

static json_t *
load(const char *text, size_t depth, size_t values, agent_fault_t *fault)
{
    agent_json_limits_t limits = {depth, values};
    agent_str_t in = exact(str(text));
    json_t *root;

    memset(fault, 0, sizeof(*fault));
    root = agent_json_load(in, &limits, fault);
    release(in);

    return root;
}

static void
test_faults(void)
{
    size_t i;
    json_t *root;
    agent_fault_t fault;

    root = load("[18446744073709551615,1]", 64, 1000, &fault);
    ok(json_is_array(root), "an integer beyond 64 bits is JSON all the same");
    json_decref(root);

    for (i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        ok(load(faults[i].text, 64, 1000, &fault) == NULL &&
               fault.code == AGENT_CODE_BAD_REQUEST,
           "refused: case %zu", i);
        is_bytes(fault.message, strlen(fault.message), faults[i].message,
                 strlen(faults[i].message), "and why");
    }

    for (i = 0; i < sizeof(leaks) / sizeof(leaks[0]); i++) {
        ok(load(leaks[i], 64, 1000, &fault) == NULL &&
               fault.code == AGENT_CODE_BAD_REQUEST &&
               strstr(fault.message, "not valid JSON") != NULL &&
               strstr(fault.message, "SECRET") == NULL &&
               strstr(fault.message, "SECR") == NULL,
           "no input in: %s", fault.message);
    }

    /* in a text so long that the parser has words of its own */

    for (i = 0; i < sizeof(leaks) / sizeof(leaks[0]); i++) {
        size_t n = 70000;
        char *text = malloc(n + 200);

        memset(text, ' ', n);
        text[0] = '[';
        text[n - 1] = '\n';
        strcpy(text + n, leaks[i]);

        ok(load(text, 64, 1000, &fault) == NULL &&
               fault.code == AGENT_CODE_BAD_REQUEST &&
               strstr(fault.message, "not valid JSON") != NULL &&
               strstr(fault.message, " at line 2, column ") != NULL &&
               strstr(fault.message, "SECR") == NULL,
           "nor in: %s", fault.message);
        free(text);
    }
}

static const struct {
    const char *text;
    size_t depth, values;
} sizes[] = {
    {"[]", 1, 1},
    {"{}", 1, 1},
    {"[[]]", 2, 2},
    {"[[],[],[[]]]", 3, 5},
    {"{\"a\":1}", 1, 2},
    {"{\"a\":1,\"b\":\"x\"}", 1, 3},
    {"{\"a\":{\"b\":{\"c\":[]}}}", 4, 4},
    {"[1,2.5e-3,true,false,null,\"x\"]", 1, 7},
    {" [ 1 , \"a\" , { \"b\" : null } ] ", 2, 5},
    {"[\"[[[[\",\"{\\\"a\\\":1,\\\\\"]", 1, 3},
    {"{\"[\\\"[\":\"\\\\\\\"]\",\":\":\":,:\"}", 1, 3},
    {"[\"0123456789[]{},:\\\"[]{},:0123456789\"]", 1, 2},
};

static void
test_limits(void)
{
    size_t i;
    agent_fault_t fault;
    json_t *root;

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        root = load(sizes[i].text, sizes[i].depth, sizes[i].values, &fault);
        ok(root != NULL, "size case %zu: at both limits (%s)", i,
           fault.message);
        json_decref(root);

        root = load(sizes[i].text, 0, 0, &fault);
        ok(root != NULL, "size case %zu: without limits", i);
        json_decref(root);

        if (sizes[i].depth > 1) {
            root = load(sizes[i].text, sizes[i].depth - 1, 0, &fault);
            ok(root == NULL && fault.code == AGENT_CODE_TOO_LARGE,
               "size case %zu: too deep", i);
        }

        if (sizes[i].values > 1) {
            root = load(sizes[i].text, 0, sizes[i].values - 1, &fault);
            ok(root == NULL && fault.code == AGENT_CODE_TOO_LARGE,
               "size case %zu: too many values", i);
        }
    }

    (void) load("[[]]", 1, 0, &fault);
    ok(strcmp(fault.message, "the body is nested deeper than 1 levels") == 0,
       "the message of depth");
    (void) load("[1,2]", 0, 2, &fault);
    ok(strcmp(fault.message, "the body holds more than 2 JSON values") == 0,
       "the message of values");
}

/* n opening, then n closing brackets. */
static agent_str_t
deep(size_t n, char open, char close)
{
    char *p = malloc(2 * n);
    agent_str_t s = {p, 2 * n};

    memset(p, open, n);
    memset(p + n, close, n);

    return s;
}

static void
test_deep(void)
{
    agent_fault_t fault;
    agent_json_limits_t limits = {64, 0}, none = {0, 0};
    agent_str_t s;
    json_t *root;
    int nomem;

    s = deep(64, '[', ']');
    root = agent_json_load(s, &limits, &fault);
    ok(root != NULL, "64 levels");
    json_decref(root);
    release(s);

    s = deep(65, '[', ']');
    ok(agent_json_load(s, &limits, &fault) == NULL &&
           fault.code == AGENT_CODE_TOO_LARGE,
       "65 levels");
    release(s);

    s = deep(1000000, '[', ']');
    ok(agent_json_load(s, &limits, &fault) == NULL &&
           fault.code == AGENT_CODE_TOO_LARGE,
       "a million levels");
    ok(agent_json_load(s, &none, &fault) == NULL &&
           fault.code == AGENT_CODE_BAD_REQUEST,
       "a million levels are more than jansson takes: %s", fault.message);
    ok(agent_json_load_lenient(s, &agent_alloc_libc, &nomem) == NULL && !nomem,
       "also leniently");
    ok(agent_json_skip(s.data, s.data + s.len) == s.data + s.len,
       "a million levels are skipped");
    s.len--;
    ok(agent_json_skip(s.data, s.data + s.len) == NULL, "if they are whole");
    release(s);

    s = deep(100, '{', ']');
    ok(agent_json_skip(s.data, s.data + s.len) == NULL, "other brackets");
    release(s);
}

static void
test_load(void)
{
    agent_fault_t fault;
    agent_str_t value;
    json_t *root;

    root = load("{\"a\":\"x\\u0000y\",\"b\":1,\"c\":\"\",\"d\":null}", 64, 100,
                &fault);
    ok(root != NULL, "NUL in a value");
    ok(agent_json_str(root, "a", &value) == 1 && value.len == 3 &&
           memcmp(value.data, "x\0y", 3) == 0,
       "a string member");
    ok(agent_json_str(root, "c", &value) == 1 && value.len == 0,
       "an empty one");
    ok(agent_json_str(root, "b", &value) == 0 &&
           agent_json_str(root, "d", &value) == 0 &&
           agent_json_str(root, "z", &value) == 0,
       "others are none");
    ok(agent_json_str(json_object_get(root, "b"), "a", &value) == 0 &&
           agent_json_str(NULL, "a", &value) == 0,
       "nor of what is no object");
    json_decref(root);

    root = agent_json_load(AGENT_STR("[1]"), NULL, &fault);
    ok(root != NULL, "no limits at all");
    json_decref(root);
}

static const struct {
    const char *name;
    agent_str_t in;
    const char *want; /* dumped compact, NULL: refused */
} lenients[] = {
    {"good", agent_str(" {\"a\":[1,2.5]} "), "{\"a\":[1,2.5]}"},
    {"a BOM", agent_str("\xef\xbb\xbf[1]"), "[1]"},
    {"the last key wins", agent_str("{\"a\":1,\"a\":2}"), "{\"a\":2}"},
    {"NaN", agent_str("{\"a\":NaN}"), "{\"a\":null}"},
    {"a lone surrogate", agent_str("[\"\\ud83d\"]"), "[\"" R "\"]"},
    {"a raw TAB", agent_str("[\"a\tb\"]"), "[\"a\\tb\"]"},
    {"invalid UTF-8", agent_str("[\"\xc3(\"]"), "[\"" R "(\"]"},
    {"a big integer", agent_str("[18446744073709551616,1]"),
     "[1.8446744073709552e19,1.0]"},
    {"both", agent_str("[99999999999999999999,NaN]"), "[1e20,null]"},
    {"nothing", agent_str(""), NULL},
    {"a BOM alone", agent_str("\xef\xbb\xbf"), NULL},
    {"a scalar", agent_str("1"), NULL},
    {"a string", agent_str("\"x\""), NULL},
    {"cut", agent_str("{\"a\":"), NULL},
    {"junk behind", agent_str("[1]x"), NULL},
    {"a big real", agent_str("[1e999]"), NULL},
    {"HTML", agent_str("<html>"), NULL},
};

static void
test_lenient(void)
{
    size_t i;
    int nomem;
    agent_str_t in;
    char *dump;
    json_t *root;

    for (i = 0; i < sizeof(lenients) / sizeof(lenients[0]); i++) {
        in = exact(lenients[i].in);
        nomem = 7;
        root = agent_json_load_lenient(in, &agent_alloc_libc, &nomem);
        dump = root != NULL
                   ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17))
                   : NULL;

        ok(nomem == 0 && (dump != NULL) == (lenients[i].want != NULL) &&
               (dump == NULL || strcmp(dump, lenients[i].want) == 0),
           "lenient: %s (%s)", lenients[i].name, dump ? dump : "refused");

        free(dump);
        json_decref(root);
        release(in);
    }
}

/* --- memory --------------------------------------------------------------- */

/* Fails the allocation number "left", and all that follow when "for_good". */
static long left = -1;
static long live;
static int fired;
static int for_good;

static void *
flaky_malloc(size_t n)
{
    void *p;

    if (left-- == 0 || (for_good && fired)) {
        fired = 1;
        return NULL;
    }

    p = malloc(n);
    live += p != NULL;

    return p;
}

static void
flaky_free(void *p)
{
    live -= p != NULL;
    free(p);
}

static void *
flaky_resize(void *ctx, void *p, size_t size)
{
    (void) ctx;

    if (size == 0) {
        flaky_free(p);
        return NULL;
    }

    if (p == NULL) {
        return flaky_malloc(size);
    }

    if (left-- == 0) {
        fired = 1;
        return NULL;
    }

    return realloc(p, size);
}

static const agent_alloc_t flaky_alloc = {flaky_resize, NULL};

/* A writer's every allocation fails once; the buffer tells. */
static void
test_writer_memory(writer_pt write, const char *name)
{
    static const agent_str_t in =
        agent_str("[\"a text \\u00e4 longer \xff\xff than\x01 the first \t"
                  "block of a buffer, \\ud83d which has 64 bytes\", NaN]");
    long n;
    int fine = 1;
    agent_buf_t b;

    for (n = 0;; n++) {
        left = n;
        live = 0;
        fired = 0;
        agent_buf_init(&b, &flaky_alloc);
        write(&b, in);
        fine = fine && agent_buf_ok(&b) == !fired;
        agent_buf_free(&b);
        fine = fine && live == 0;

        if (!fired) {
            break;
        }
    }

    left = -1;
    ok(fine && n >= 1, "%s: %ld allocations failed, all are seen", name, n);
}

static agent_rc_t unescape_rc;

static void
unescape(agent_buf_t *b, agent_str_t s)
{
    (void) s;
    unescape_rc = agent_json_unescape(
        b, AGENT_STR("a text \\u00e4 longer than the first block of a buffer, "
                     "\\ud83d\\ude00\\n which has 64 bytes \xe2\x82\xac"));

    /* as the other writers tell it */

    b->failed = unescape_rc == AGENT_NOMEM;
}

static void
test_lenient_memory(void)
{
    long n;
    int nomem, fine = 1;
    json_t *root;

    for (n = 0;; n++) {
        left = n;
        live = 0;
        fired = 0;
        root = agent_json_load_lenient(AGENT_STR("[\"a\tb\"]"), &flaky_alloc,
                                       &nomem);
        fine = fine && (root == NULL) == fired && nomem == fired && live == 0;
        json_decref(root);

        if (!fired) {
            break;
        }
    }

    left = -1;
    ok(fine && n >= 1, "lenient: %ld allocations failed", n);
}

/*
 * The allocations of trees fail: one, after which jansson tries again, or all.
 * It takes a failed string for a syntax error (2.14), so not all of these can
 * be told from the client's fault.
 */
static void
test_jansson_memory(int all)
{
    static const agent_str_t in =
        agent_str("{\"a\":[1,2.5,\"x\",{\"b\":null,\"\\u00e4\":true}],"
                  "\"c\":\"a text longer than the first block of it\"}");
    long n, told = 0;
    int nomem, fine = 1;
    agent_fault_t fault;
    json_t *root;

    for_good = all;
    json_object_seed(1);
    json_set_alloc_funcs(flaky_malloc, flaky_free);

    for (n = 0;; n++) {
        left = n;
        live = 0;
        fired = 0;
        root = agent_json_load(in, NULL, &fault);

        if (root == NULL) {
            fine = fine && fired;
            told += fault.code == AGENT_CODE_INTERNAL;

        } else {
            fine = fine && !(all && fired);
            told += fired;
        }

        json_decref(root);
        fine = fine && live == 0;

        if (!fired) {
            break;
        }

        left = n;
        fired = 0;
        root = agent_json_load_lenient(in, &agent_alloc_libc, &nomem);
        json_decref(root);
        fine = fine && live == 0;
    }

    left = -1;
    for_good = 0;
    json_set_alloc_funcs(malloc, free);
    ok(fine, "trees: %ld allocations failed, nothing leaks", n);
    ok(told > n / 2, "%ld of them are no fault of the client", told);
}

/* --- raw values ----------------------------------------------------------- */

static const struct {
    const char *text;
    long end; /* -1: no whole value */
} skips[] = {
    {"", -1},           {"  ", -1},       {"1", 1},
    {" 1 ", 2},         {"-1.5e3,", 6},   {"true]", 4},
    {"null}", 4},       {",", -1},        {"]", -1},
    {"}", -1},          {":", -1},        {"\"a\"", 3},
    {"\"a\\\"b\":", 6}, {"\"\\\\\" ", 4}, {"\"01234567\\\"01234567\"1", 20},
    {"\"a", -1},        {"\"a\\", -1},    {"\"a\\\"", -1},
    {"[]", 2},          {"[] ", 2},       {"\n{\"a\":[1,{\"b\":\"]}\"}]}x", 21},
    {"[[]", -1},        {"[}", -1},       {"{\"a\":[}]", -1},
    {"[\"]", -1},       {"{", -1},
};

static void
test_skip(void)
{
    size_t i;
    long at;
    const char *end;
    agent_str_t s;

    for (i = 0; i < sizeof(skips) / sizeof(skips[0]); i++) {
        s = exact(str(skips[i].text));
        end = agent_json_skip(s.data, s.data + s.len);
        at = end != NULL ? (long) (end - s.data) : -1;
        ok(at == skips[i].end, "skip case %zu: %ld", i, at);
        release(s);
    }
}

static const struct {
    const char *object, *key, *want; /* NULL: declined */
} finds[] = {
    {"{\"a\":1,\"b\":2}", "a", "1"},
    {"{\"a\":1,\"b\":2}", "b", "2"},
    {" { \"a\" : [ 1 , 2 ] , \"b\" : {} } ", "a", "[ 1 , 2 ]"},
    {" { \"a\" : [ 1 , 2 ] , \"b\" : {} } ", "b", "{}"},
    {"{\"x\":{\"a\":1},\"a\":\"}\"}", "a", "\"}\""},
    {"{\"x\":\"a\",\"a\":null}", "a", "null"},
    {"{\"ab\":1}", "a", NULL},
    {"{\"a\":1}", "ab", NULL},
    {"{\"a\":1}", "", NULL},
    {"{\"\":1}", "", "1"},
    {"{}", "a", NULL},
    {"[]", "a", NULL},
    {"", "a", NULL},
    {"null", "a", NULL},
    {"{\"\\u0061\":1}", "a", "1"},
    {"{\"\\u0061b\":1,\"a\":2}", "a", "2"},
    {"{\"a\\/b\":1}", "a/b", "1"},
    {"{\"\\ud83d\\ude00\":1}", "\xf0\x9f\x98\x80", "1"},
    {"{\"\\u00E4\\n\":1}", "\xc3\xa4\n", "1"},
    {"{\"\\\"\":1}", "\"", "1"},
    {"{\"\\\\\":1}", "\\", "1"},
    {"{\"\\ud83d\":1,\"a\":2}", "a", "2"},
    {"{\"\\u0061\":1}", "aa", NULL},
    {"{\"\\u0061a\":1}", "a", NULL},
    {"{\"b\":1,}", "a", NULL},
    {"{\"b\" 1,\"a\":2}", "a", NULL},
    {"{b:1,\"a\":2}", "a", NULL},
    {"{\"b\":1 \"a\":2}", "a", NULL},
    {"{\"a\":}", "a", NULL},
    {"{\"a\":[1}", "a", NULL},
    {"{\"a\"", "a", NULL},
    {"{\"a", "a", NULL},
};

static void
test_find(void)
{
    size_t i;
    agent_rc_t rc;
    agent_str_t s, v;

    for (i = 0; i < sizeof(finds) / sizeof(finds[0]); i++) {
        s = exact(str(finds[i].object));
        v = AGENT_STR("");
        rc = agent_json_find(s, str(finds[i].key), &v);

        if (finds[i].want == NULL) {
            ok(rc == AGENT_DECLINED, "find case %zu", i);
        } else {
            ok(rc == AGENT_OK, "find case %zu", i);
            is_bytes(v.data, v.len, finds[i].want, strlen(finds[i].want),
                     "and its value");
        }

        release(s);
    }
}

static const struct {
    const char *array;
    const char *want; /* each with a bar behind it */
} nexts[] = {
    {"[]", ""},
    {" [ ] ", ""},
    {"[1]", "1|"},
    {"[1,2,3]", "1|2|3|"},
    {" [ 1 , \"a,b\" , [ 2 , 3 ] , {\"x\":[]} ] ",
     "1|\"a,b\"|[ 2 , 3 ]|{\"x\":[]}|"},
    {"{}", ""},
    {"", ""},
    {"1", ""},
    {"[", ""},
    {"[1", "1|"},
    {"[1,", "1|"},
    {"[1 2]", "1|"},
    {"[,1]", ""},
    {"[\"a", ""},
};

static void
test_next(void)
{
    size_t i;
    const char *cursor;
    agent_str_t s, v;
    agent_buf_t b;

    for (i = 0; i < sizeof(nexts) / sizeof(nexts[0]); i++) {
        s = exact(str(nexts[i].array));
        cursor = NULL;
        agent_buf_init(&b, &agent_alloc_libc);

        while (agent_json_next(s, &cursor, &v) == AGENT_OK) {
            agent_buf_add_str(&b, v);
            agent_buf_add_lit(&b, "|");
        }

        is_bytes(b.data, b.len, nexts[i].want, strlen(nexts[i].want),
                 nexts[i].array);
        ok(agent_json_next(s, &cursor, &v) == AGENT_DONE, "and stays done");
        agent_buf_free(&b);
        release(s);
    }
}

/* A random tree of at most that depth. */
static json_t *
random_tree(unsigned depth)
{
    static const char *const strings[] = {
        "", "a", "a\"b\\", "]}[{,:", "\xf0\x9f\x98\x80\n", "key longer than 8"};
    json_t *tree;
    size_t n;

    switch (rnd(depth > 0 ? 7 : 4)) {
    case 0:
        return json_integer((json_int_t) rnd(1000) - 500);
    case 1:
        return json_real((double) rnd(1000) / 8);
    case 2:
        return rnd(2) ? json_null() : json_true();
    case 3:
        return json_string(strings[rnd(6)]);
    case 4:
        tree = json_array();

        for (n = rnd(4); n > 0; n--) {
            json_array_append_new(tree, random_tree(depth - 1));
        }

        return tree;
    default:
        tree = json_object();

        for (n = rnd(5); n > 0; n--) {
            json_object_set_new(tree, strings[rnd(6)], random_tree(depth - 1));
        }

        return tree;
    }
}

/* The raw bytes stand for the same value. */
static int
stands_for(agent_str_t raw, const json_t *want)
{
    json_t *got = json_loadb(raw.data, raw.len, JSON_DECODE_ANY, NULL);
    int yes = got != NULL && json_equal(got, want);

    json_decref(got);

    return yes;
}

/* Finds every member and element by their bytes, all the way down. */
static int
same_as_tree(agent_str_t raw, json_t *tree)
{
    size_t i;
    const char *key, *cursor = NULL;
    agent_str_t v;
    json_t *child;

    if (agent_json_skip(raw.data, raw.data + raw.len) != raw.data + raw.len ||
        !stands_for(raw, tree)) {
        return 0;
    }

    if (json_is_object(tree)) {
        json_object_foreach(tree, key, child)
        {
            if (agent_json_find(raw, str(key), &v) != AGENT_OK ||
                !same_as_tree(v, child)) {
                return 0;
            }
        }

        return agent_json_find(raw, str("absent"), &v) == AGENT_DECLINED;
    }

    json_array_foreach(tree, i, child)
    {
        if (agent_json_next(raw, &cursor, &v) != AGENT_OK ||
            !same_as_tree(v, child)) {
            return 0;
        }
    }

    return agent_json_next(raw, &cursor, &v) == AGENT_DONE;
}

/* Every prefix and some damage, for ASan; answers are not looked at. */
static void
torture(agent_str_t raw)
{
    size_t i, n;
    int nomem;
    const char *cursor;
    agent_fault_t fault;
    agent_json_limits_t limits = {64, 1000};
    agent_str_t s, v;

    for (i = 0; i < 2 * raw.len; i++) {
        n = i < raw.len ? i : raw.len;
        s.data = raw.data;
        s.len = n;
        s = exact(s);

        if (n == raw.len) {
            ((char *) (uintptr_t) s.data)[rnd(n)] = "\"\\[]{},:\x80 1"[rnd(11)];
        }

        (void) agent_json_skip(s.data, s.data + s.len);
        (void) agent_json_find(s, str("absent"), &v);

        for (cursor = NULL; agent_json_next(s, &cursor, &v) == AGENT_OK;) {
        }

        json_decref(agent_json_load(s, &limits, &fault));
        json_decref(agent_json_load_lenient(s, &agent_alloc_libc, &nomem));
        release(s);
    }
}

static void
test_trees(void)
{
    int i, fine = 1;
    char *dump;
    agent_str_t raw;
    json_t *tree;
    static const size_t flags[] = {JSON_COMPACT, JSON_INDENT(3),
                                   JSON_ENSURE_ASCII | JSON_ESCAPE_SLASH, 0};

    for (i = 0; i < 4000 && fine; i++) {
        tree = random_tree(5);
        dump = json_dumps(tree, JSON_ENCODE_ANY | flags[i % 4]);
        raw = exact(str(dump));
        fine = same_as_tree(raw, tree);

        if (!fine) {
            printf("# in %s\n", dump);
        }

        if (i % 20 == 0 && raw.len > 0 && raw.len < 2000) {
            torture(raw);
        }

        release(raw);
        free(dump);
        json_decref(tree);
    }

    ok(fine, "random trees, found by their bytes");
}

int
main(void)
{
    test_utf8();
    test_utf8_all();
    test_escape();
    test_unescape();
    test_round_trips();
    test_cuts();
    test_repair();
    test_faults();
    test_limits();
    test_deep();
    test_load();
    test_lenient();
    test_writer_memory(agent_json_escape, "escape");
    test_writer_memory(agent_json_quote, "quote");
    test_writer_memory(agent_utf8_sanitize, "sanitize");
    test_writer_memory(agent_json_sanitize, "repair");
    test_writer_memory(unescape, "unescape");
    test_lenient_memory();
    test_jansson_memory(0);
    test_jansson_memory(1);
    test_skip();
    test_find();
    test_next();
    test_trees();

    return done_testing();
}
