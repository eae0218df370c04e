// Runs `claude -p` once or several times in one session and prints what happened as JSON.
//
//   node client.mjs print '{"model": "…", "prompts": ["…"], "tools": ["Write"]}'
//
// Claude Code has a configuration of its own, in a temporary CLAUDE_CONFIG_DIR.

import { spawn } from "node:child_process";
import { mkdtemp, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [, , scenario, text] = process.argv;
if (scenario !== "print") throw new Error(`unknown scenario ${scenario}`);
const { model, prompts, tools = [] } = JSON.parse(text);

const root = await mkdtemp(join(tmpdir(), "claude-code-"));
const [home, work] = [join(root, "home"), join(root, "work")];

function claude(args) {
  const kept = Object.entries(process.env).filter(([name]) => !/^CLAUDE/i.test(name));
  const env = {
    ...Object.fromEntries(kept),
    CLAUDE_CONFIG_DIR: home,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    ANTHROPIC_SMALL_FAST_MODEL: model,
    ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
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

try {
  await mkdir(home);
  await mkdir(work);
  const runs = [];
  let session = null;
  for (const prompt of prompts) {
    const args = ["-p", prompt, "--model", model, "--output-format", "stream-json", "--verbose"];
    if (tools.length > 0) args.push("--allowedTools", tools.join(","));
    if (session) args.push("--resume", session);
    const run = await claude(args);
    runs.push(run);
    session ??= run.events.find((event) => event.session_id)?.session_id;
  }
  const files = {};
  for (const name of await readdir(work)) files[name] = await readFile(join(work, name), "utf8");
  console.log(JSON.stringify({ runs, files }));
} finally {
  await rm(root, { recursive: true, force: true, maxRetries: 5 });
}
