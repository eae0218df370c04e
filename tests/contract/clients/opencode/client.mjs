// Runs `opencode run` once or several times in one session and prints what happened as JSON.
//
//   OPENAI_BASE_URL=… OPENAI_API_KEY=… node client.mjs run '{"model": "…", "package": "@ai-sdk/openai", "prompts": ["…"]}'
//
// opencode has a home and a configuration of its own, in a temporary folder.

import { spawn } from "node:child_process";
import { mkdtemp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const [, , scenario, text] = process.argv;
if (scenario !== "run") throw new Error(`unknown scenario ${scenario}`);
const { model, package: npm, prompts } = JSON.parse(text);
const scripts = dirname(fileURLToPath(import.meta.url));
const program = join(scripts, "..", "node_modules", "opencode-linux-x64", "bin", "opencode");
const root = await mkdtemp(join(tmpdir(), "opencode-"));
const [home, work] = [join(root, "home"), join(root, "work")];
const configuration = {
  share: "disabled",
  autoupdate: false,
  model: `platform/${model}`,
  small_model: `platform/${model}`,
  permission: { "*": "allow" },
  provider: {
    platform: {
      npm,
      name: "Platform",
      options: { baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY },
      models: { [model]: { name: model, tool_call: true, reasoning: true } },
    },
  },
};

function opencode(args) {
  const env = { ...process.env, PWD: work, HOME: home, OPENCODE_CONFIG: join(root, "opencode.json") };
  for (const name of ["CONFIG", "DATA", "CACHE", "STATE"]) env[`XDG_${name}_HOME`] = join(home, name.toLowerCase());
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd: work, env, stdio: ["ignore", "pipe", "pipe"] });
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

try {
  const settings = join(home, "config", "opencode");
  // Otherwise it would install a package for plugins there.
  await mkdir(join(settings, "node_modules"), { recursive: true });
  const installed = { packages: { "": { dependencies: { "@opencode-ai/plugin": "*" } } } };
  await writeFile(join(settings, "package-lock.json"), JSON.stringify(installed));
  await mkdir(work);
  await writeFile(join(root, "opencode.json"), JSON.stringify(configuration));
  const runs = [];
  for (const [place, prompt] of prompts.entries()) {
    // With a title, none is asked of the model.
    const session = place > 0 ? ["--continue"] : ["--title", "Test"];
    runs.push(await opencode(["run", "--format", "json", ...session, prompt]));
  }
  const files = {};
  for (const name of await readdir(work)) files[name] = await readFile(join(work, name), "utf8");
  console.log(JSON.stringify({ runs, files }));
} finally {
  await rm(root, { recursive: true, force: true, maxRetries: 5 });
}
