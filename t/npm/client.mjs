// The real AG-UI client against an endpoint:
//
//     node client.mjs MODE URL [argument ...]
//
// text            two turns of one thread
// tools           a call of a client tool, its result, the answer
// abort           abortRun() in the middle, then another run
// error STATUS CODE   the POST fails with that status and code
// late CODE       the run ends with RUN_ERROR of that code
// resume DIR PLAN SEQ END ...  a run of each plan (AgentReplay), joined by other
//                 clients at that event and after its end; DIR/gate-NAME opens
//
// Prints one JSON line {mode, ok, ...}; whatever the client warns about is a
// failure, for its warnings are where it mends what a server did wrong.

import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { HttpAgent, verifyEvents } from '@ag-ui/client';
import { EventSchemas } from '@ag-ui/core/schemas';
import { from, lastValueFrom, toArray } from 'rxjs';

const [mode, url, ...args] = process.argv.slice(2);
const warnings = [];

for (const level of ['warn', 'error']) {
  console[level] = (...a) => warnings.push(a.map(String).join(' '));
}

process.on('unhandledRejection', (e) => warnings.push(`unhandled: ${e}`));

function check(condition, message) {
  if (!condition) throw new Error(message);
}

const user = (content) => ({ id: randomUUID(), role: 'user', content });

const newAgent = (...messages) =>
  new HttpAgent({
    url,
    threadId: randomUUID(),
    initialMessages: messages,
  });

// One run: its events, as they came and as the client took them.
async function run(agent, parameters = {}, subscriber = {}) {
  const events = [];
  const result = await agent.runAgent(parameters, {
    ...subscriber,
    onEvent: ({ event }) => {
      events.push(structuredClone(event));
    },
  });

  return { events, result };
}

async function checkEvents(events) {
  await lastValueFrom(from(events).pipe(verifyEvents(false), toArray()));

  for (const event of events) {
    const parsed = EventSchemas.safeParse(event);
    check(
      parsed.success,
      `${event.type} does not fit the schema: ${parsed.error?.message}`,
    );
  }

  const end = events.at(-1)?.type;
  check(end === 'RUN_FINISHED', `ended with ${end}`);
}

const textOf = (events) =>
  events
    .filter((e) => e.type === 'TEXT_MESSAGE_CONTENT')
    .map((e) => e.delta)
    .join('');

const modes = {
  async text() {
    const agent = newAgent();
    const texts = [];

    for (const question of ['Hello.', 'And then?']) {
      agent.addMessage(user(question));
      const { events, result } = await run(agent);
      await checkEvents(events);
      const text = textOf(events);
      check(text, 'no text');
      const answers = result.newMessages.filter((m) => m.role === 'assistant');
      check(
        answers.length === 1 && answers[0].content === text,
        `new messages: ${JSON.stringify(result.newMessages)}`,
      );
      texts.push(text);
    }

    const all = agent.messages.map((m) => m.role);
    const roles = all.filter((role) => role !== 'reasoning').join();
    check(roles === 'user,assistant,user,assistant', `messages: ${roles}`);
    const ids = new Set(agent.messages.map((m) => m.id));
    check(ids.size === all.length, 'message ids are not unique');

    return { texts };
  },

  async tools() {
    const agent = newAgent(user('What is the weather in Paris?'));
    const tool = {
      name: 'get_weather',
      description: 'The weather of a city',
      parameters: {
        type: 'object',
        properties: { city: { type: 'string' } },
        required: ['city'],
      },
    };
    const first = await run(agent, { tools: [tool] });
    await checkEvents(first.events);
    const calls = agent.messages.flatMap((m) => m.toolCalls ?? []);
    check(calls.length === 1, `${calls.length} tool calls`);
    const call = calls[0];
    check(call.function.name === tool.name, `it calls ${call.function.name}`);
    const city = JSON.parse(call.function.arguments).city;
    const end = first.events.at(-1);
    check(
      end.outcome?.pendingToolCallIds?.join() === call.id,
      `outcome: ${JSON.stringify(end.outcome)}`,
    );

    agent.addMessage({
      id: randomUUID(),
      role: 'tool',
      toolCallId: call.id,
      content: 'sunny',
    });
    const second = await run(agent, { tools: [tool] });
    await checkEvents(second.events);
    const roles = agent.messages.map((m) => m.role).join();
    check(roles === 'user,assistant,tool,assistant', `messages: ${roles}`);

    return { city, text: textOf(second.events) };
  },

  async abort() {
    const agent = newAgent(user('Count to a thousand.'));
    let deltas = 0;
    const { events } = await run(agent, {}, {
      onTextMessageContentEvent: () => {
        if (++deltas === 3) agent.abortRun();
      },
    });
    check(deltas >= 3, `only ${deltas} deltas`);
    check(events.at(-1).type !== 'RUN_FINISHED', 'it ran to its end');
    const partial = textOf(events);

    agent.setMessages([user('Once more.')]);
    const again = await run(agent, {}, {
      onTextMessageContentEvent: () => {
        if (++deltas === 9) agent.abortRun();
      },
    });
    check(textOf(again.events), 'no text after the abort');

    return { partial, again: textOf(again.events) };
  },

  async error(status, code) {
    const failure = await run(newAgent(user('Hello.'))).then(
      () => null,
      (e) => e,
    );
    check(failure, 'the run did not fail');
    check(failure.status === +status, `status ${failure.status}: ${failure}`);
    const got = failure.payload?.error;
    check(got?.code === code, `payload: ${JSON.stringify(failure.payload)}`);
    check(got.message, 'no message');
    // the client says so on the console, too
    const said = warnings.findIndex((w) => w.includes(`HTTP ${status}`));
    if (said >= 0) warnings.splice(said, 1);

    return { status: failure.status, code: got.code };
  },

  async late(code) {
    const { events } = await run(newAgent(user('Hello.')));
    const end = events.at(-1);
    check(end.type === 'RUN_ERROR', `ended with ${end.type}`);
    check(end.code === code, `code ${end.code}: ${end.message}`);

    return { code: end.code, text: textOf(events) };
  },
};

// The class of docs/resume.md, from next to this file; or, with a cursor that is
// none of the run's, what it would do with that.
async function resuming(messages, threadId, runId, cursor) {
  const { ResumingAgent } = await import(
    import.meta.url.replace('client-', 'resuming-')
  );
  const agent = new ResumingAgent({ url, threadId, initialMessages: messages });
  const events = [];
  agent.subscribe({
    onEvent: ({ event }) => {
      events.push(structuredClone(event));
    },
  });

  if (cursor) {
    agent.url = `${url}/runs/${runId}/stream`;
    agent.requestInit = () => ({
      method: 'GET',
      headers: { 'Last-Event-ID': cursor },
      signal: agent.abortController.signal,
    });
  }

  const over = cursor ? agent.runAgent({ runId }) : agent.resume(runId);
  return { agent, events, over };
}

// What a client holds, without what its reducer may add or leave out.
const held = (agent) =>
  agent.messages.map(({ id, role, content, toolCalls }) => ({
    id,
    role,
    content: content || '',
    toolCalls: (toolCalls ?? []).map((c) => ({
      id: c.id,
      name: c.function.name,
      arguments: c.function.arguments,
    })),
  }));

async function resume(dir, plan, seq, end) {
  const threadId = randomUUID();
  const runId = randomUUID();
  const own = [
    { id: 'sys', role: 'system', content: 'from the client' },
    user('first'),
    { id: 'old', role: 'assistant', content: 'second' },
    user(plan),
  ];
  const whole = new HttpAgent({ url, threadId, initialMessages: own });
  const all = run(whole, { runId });
  const at = async () => {
    const r = await fetch(`${url}/runs/${runId}`);
    const id = r.ok ? (await r.json()).lastEventId : undefined;
    return +(id?.split('-')[1] ?? -1);
  };

  for (const last = Date.now() + 10000; (await at()) < +seq; ) {
    check(Date.now() < last, 'the run does not come that far');
    await new Promise((done) => setTimeout(done, 20));
  }

  // several each, so that all workers are met
  const clients = [];
  const join = async (name) => {
    for (let i = 0; i < 4; i++) {
      clients.push(
        [`${name} join`, await resuming([], threadId, runId)],
        [`${name} unknown`, await resuming(own, threadId, runId, '1-1')],
        [`${name} ahead`, await resuming(own, threadId, runId, '9999')],
      );
    }
  };

  await join('live');
  await new Promise((done) => setTimeout(done, 100));
  for (const [, name] of plan.matchAll(/gate (\w+)/g)) {
    writeFileSync(`${dir}/gate-${name}`, '');
  }

  const { events } = await all;
  await join('over');

  const want = JSON.stringify(held(whole));
  const last = events.at(-1);
  check(last.type === end, `the run ended with ${last.type}`);

  for (const [name, { agent, events, over }] of clients) {
    await over;
    const got = JSON.stringify(held(agent));
    check(got === want, `${name}: ${got}, not ${want}`);
    check(
      JSON.stringify(events.at(-1)) === JSON.stringify(last),
      `${name}: ended with ${JSON.stringify(events.at(-1))}`,
    );
    check(
      events.filter((e) => /^RUN_(FINISHED|ERROR)$/.test(e.type)).length === 1,
      `${name}: not one end`,
    );
    if (end === 'RUN_FINISHED') await checkEvents(events);
  }

  // a client that has resumed goes on with another run
  const { agent } = clients[0][1];
  agent.addMessage(user('text 1'));
  const next = await run(agent);
  check(textOf(next.events), 'no text in the next run');

  return clients.length;
}

modes.resume = async (dir, ...cases) => {
  let clients = 0;

  while (cases.length) {
    const [plan, seq, end] = cases.splice(0, 3);
    clients += await resume(dir, plan, seq, end).catch((e) => {
      throw new Error(`"${plan}": ${e?.message ?? e}`);
    });
  }

  return { clients };
};

const out = { mode, ok: false };

try {
  check(modes[mode] && url, 'usage: client.mjs MODE URL [argument ...]');
  Object.assign(out, await modes[mode](...args));
  out.ok = true;
} catch (e) {
  out.error = String(e?.message ?? e);
}

// late rejections of the client's own
await new Promise((done) => setTimeout(done, 50));

if (warnings.length) {
  out.ok = false;
  out.warnings = warnings;
}

console.log(JSON.stringify(out));
process.exit(out.ok ? 0 : 1);
