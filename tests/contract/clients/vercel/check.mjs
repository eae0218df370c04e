// Lets the AI SDK read responses and streams, and prints what its schemas reject.
//
//     node check.mjs FILE
//
// reads a line `{"type": "Response", "body": …}` or `{"type": "ResponseStream", "body": [event, …]}` for each, and prints
// `[{"line", "type", "path", "message"}]`.

import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";

const prompt = [{ role: "user", content: [{ type: "text", text: "Hi" }] }];

function model(text, contentType) {
  const fetch = async () => new Response(text, { headers: { "content-type": contentType } });
  return createOpenAI({ apiKey: "unused", fetch }).responses("unused");
}

// The innermost error is that of the schema. An error of the response itself is nothing that the SDK cannot read.
function* rejections(error) {
  const causes = [];
  for (let cause = error; cause instanceof Error; cause = cause.cause) causes.push(cause);
  if (!causes.some(({ name }) => /TypeValidation|JSONParse/.test(name))) return;
  const issues = causes.at(-1).issues ?? [{ path: [], message: causes.at(-1).message }];
  for (const issue of issues) yield* innermost(issue, []);
}

function* innermost(issue, parents) {
  const path = [...parents, ...issue.path];
  // Of a union, the branches that differ elsewhere than in their tag.
  const branches = (issue.errors ?? []).filter((branch) => !branch.some(({ path: [last] }) => last === "type"));
  if (branches.length === 0) yield { path: `/${path.join("/")}`, message: issue.message };
  for (const branch of branches) for (const part of branch) yield* innermost(part, path);
}

async function* read(type, body) {
  if (type === "Response") {
    try {
      await model(JSON.stringify(body), "application/json").doGenerate({ prompt });
    } catch (error) {
      yield* rejections(error);
    }
    return;
  }
  const text = body.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join("");
  try {
    const { stream } = await model(text, "text/event-stream").doStream({ prompt });
    for await (const part of stream) if (part.type === "error") yield* rejections(part.error);
  } catch (error) {
    yield* rejections(error);
  }
}

const defects = [];
for (const [line, text] of readFileSync(process.argv[2], "utf8").split("\n").filter(Boolean).entries()) {
  const { type, body } = JSON.parse(text);
  for await (const defect of read(type, body)) defects.push({ line, type, ...defect });
}
console.log(JSON.stringify(defects));
