// Runs `claude -p` once or several times in one session and prints what happened as JSON.
//
//   node client.mjs print '{"model": "…", "prompts": ["…"], "tools": ["Write"]}'
//
// Claude Code has a configuration of its own, in a temporary CLAUDE_CONFIG_DIR. Every connection to anything but this
// machine goes to a proxy that counts and refuses it.

import { spawn } from "node:child_process";
import { mkdtemp, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [, , scenario, text] = process.argv;
if (scenario !== "print") throw new Error(`unknown scenario ${scenario}`);
const { model, prompts, tools = [], options = [], variables = {} } = JSON.parse(text);

const root = await mkdtemp(join(tmpdir(), "claude-code-"));
const [home, work] = [join(root, "home"), join(root, "work")];

async function countingProxy() {
  const connections = [];
  const server = createServer((request, response) => {
    connections.push(request.url);
    response.writeHead(403).end();
  });
  server.on("connect", (request, socket) => {
    connections.push(request.url);
    socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { connections, url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

function claude(args, proxy) {
  const kept = Object.entries(process.env).filter(([name]) => !/^CLAUDE|_proxy$/i.test(name));
  const env = {
    ...Object.fromEntries(kept),
    CLAUDE_CONFIG_DIR: home,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    ANTHROPIC_SMALL_FAST_MODEL: model,
    ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
    HTTP_PROXY: proxy,
    HTTPS_PROXY: proxy,
    NO_PROXY: "127.0.0.1,localhost",
    ...variables,
  };
  const began = Date.now();
  return new Promise((resolve, reject) => {
    const child = spawn("claude", args, { cwd: work, env, stdio: ["ignore", "pipe", "pipe"] });
    const [output, errors] = [[], []];
    child.stdout.on("data", (data) => output.push(data));
    child.stderr.on("data", (data) => errors.push(data));
    child.on("error", reject);
    child.on("close", (status) => {
      const lines = Buffer.concat(output).toString().split("\n").filter(Boolean);
      resolve({
        status,
        seconds: (Date.now() - began) / 1000,
        events: lines.map((line) => JSON.parse(line)),
        errors: Buffer.concat(errors).toString(),
      });
    });
  });
}

const proxy = await countingProxy();
try {
  await mkdir(home);
  await mkdir(work);
  const runs = [];
  let session = null;
  for (const prompt of prompts) {
    const args = ["-p", prompt, "--model", model, "--output-format", "stream-json", "--verbose", ...options];
    if (tools.length > 0) args.push("--allowedTools", tools.join(","));
    if (session) args.push("--resume", session);
    const run = await claude(args, proxy.url);
    runs.push(run);
    session ??= run.events.find((event) => event.session_id)?.session_id;
  }
  const files = {};
  for (const name of await readdir(work)) files[name] = await readFile(join(work, name), "utf8");
  console.log(JSON.stringify({ runs, files, connections: proxy.connections }));
} finally {
  proxy.close();
  await rm(root, { recursive: true, force: true, maxRetries: 5 });
}
