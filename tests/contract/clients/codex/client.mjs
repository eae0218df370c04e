// Runs `codex exec` once or several times in one session and prints what happened as JSON.
//
//   node client.mjs exec '{"model": "…", "prompts": ["…"], "transport": "http", "sandbox": "read-only"}'
//
// Codex finds the server in a configuration of its own, in a temporary CODEX_HOME. Every connection to anything but this
// machine goes to a proxy that counts and refuses it.

import { spawn } from "node:child_process";
import { mkdtemp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { homedir } from "node:os";
import { join } from "node:path";

const [, , scenario, text] = process.argv;
if (scenario !== "exec") throw new Error(`unknown scenario ${scenario}`);
const {
  model,
  prompts,
  transport = "http",
  sandbox = "read-only",
  provider = "own",
  files = {},
  schema = null,
  images = [],
  config = [],
} = JSON.parse(text);
const { OPENAI_BASE_URL: baseUrl, OPENAI_API_KEY: key } = process.env;

// Not in the system's temporary directory, where Codex refuses to set up its programs.
const cache = process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache");
await mkdir(join(cache, "responses-platform"), { recursive: true });
const root = await mkdtemp(join(cache, "responses-platform", "codex-"));
const [home, work] = [join(root, "home"), join(root, "work")];

function configuration() {
  const common = [`model = ${JSON.stringify(model)}`, "check_for_update_on_startup = false"];
  // Codex would fetch plugins from GitHub and report usage to OpenAI.
  const offline = ["[features]", "plugins = false", "[analytics]", "enabled = false"];
  if (provider === "built-in") return [...common, `openai_base_url = ${JSON.stringify(baseUrl)}`, ...offline];
  return [
    ...common,
    'model_provider = "platform"',
    ...offline,
    "[model_providers.platform]",
    'name = "platform"',
    `base_url = ${JSON.stringify(baseUrl)}`,
    'env_key = "PLATFORM_KEY"',
    'wire_api = "responses"',
    `supports_websockets = ${transport === "websocket"}`,
    // An error must not be hidden by another attempt, nor by falling back from WebSocket to HTTP.
    "request_max_retries = 0",
    "stream_max_retries = 0",
  ];
}

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

function codex(args, proxy) {
  const kept = Object.entries(process.env).filter(([name]) => !/^(OPENAI_|CODEX_)|_proxy$/i.test(name));
  const env = {
    ...Object.fromEntries(kept),
    CODEX_HOME: home,
    HTTP_PROXY: proxy,
    HTTPS_PROXY: proxy,
    ALL_PROXY: proxy,
    NO_PROXY: "127.0.0.1,localhost",
    ...(provider === "built-in" ? { CODEX_API_KEY: key } : { PLATFORM_KEY: key }),
  };
  return new Promise((resolve, reject) => {
    const child = spawn("codex", args, { cwd: work, env, stdio: ["ignore", "pipe", "pipe"] });
    const [output, errors] = [[], []];
    child.stdout.on("data", (data) => output.push(data));
    child.stderr.on("data", (data) => errors.push(data));
    child.on("error", reject);
    child.on("close", (status) => {
      const lines = Buffer.concat(output).toString().split("\n").filter(Boolean);
      resolve({ status, events: lines.map((line) => JSON.parse(line)), errors: Buffer.concat(errors).toString() });
    });
  });
}

const proxy = await countingProxy();
try {
  await mkdir(home);
  await mkdir(work);
  await writeFile(join(home, "config.toml"), configuration().join("\n"));
  for (const [name, content] of Object.entries(files)) await writeFile(join(work, name), Buffer.from(content, "base64"));
  const shared = ["--json", "--skip-git-repo-check", ...config.flatMap((setting) => ["-c", setting])];
  if (schema) {
    await writeFile(join(root, "schema.json"), JSON.stringify(schema));
    shared.push("--output-schema", join(root, "schema.json"));
  }
  const runs = [];
  let thread = null;
  for (const prompt of prompts) {
    const pictures = thread ? [] : images.flatMap((name) => ["-i", join(work, name)]);
    const args = thread
      ? ["exec", "-s", sandbox, "resume", ...shared, thread, prompt]
      : ["exec", "-s", sandbox, ...shared, ...pictures, "--", prompt];
    const run = await codex(args, proxy.url);
    runs.push(run);
    thread ??= run.events.find((event) => event.type === "thread.started")?.thread_id;
  }
  const left = {};
  for (const name of await readdir(work)) left[name] = (await readFile(join(work, name))).toString("base64");
  console.log(JSON.stringify({ runs, files: left, connections: proxy.connections }));
} finally {
  proxy.close();
  await rm(root, { recursive: true, force: true, maxRetries: 5 });
}
