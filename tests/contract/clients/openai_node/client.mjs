// Typical use of openai-node. Runs a scenario and prints its result as JSON.
//
//     OPENAI_BASE_URL=… OPENAI_API_KEY=… node client.mjs <scenario> '{"model": …}'

import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [, , scenario, options] = process.argv;
const { model, mcp } = JSON.parse(options);
const client = new OpenAI({ maxRetries: 0 });
const look = {
  type: "function",
  name: "look",
  description: "Look at a place.",
  parameters: {
    type: "object",
    properties: { place: { type: "string" } },
    required: ["place"],
    additionalProperties: false,
  },
  strict: true,
};

async function pieces(stream) {
  const found = [];
  for await (const event of stream) if (event.type === "response.output_text.delta") found.push(event.delta);
  return found;
}

const SCENARIOS = {
  async text() {
    const response = await client.responses.create({ model, input: "Hi" });
    return { text: response.output_text };
  },
  async streaming() {
    const stream = client.responses.stream({ model, input: "Hi" });
    const found = await pieces(stream);
    return { pieces: found, text: (await stream.finalResponse()).output_text };
  },
  async tools() {
    const input = [{ role: "user", content: "What is on the sofa?" }];
    const first = await client.responses.create({ model, input, tools: [look] });
    for (const item of first.output) {
      input.push(item);
      if (item.type !== "function_call") continue;
      const { place } = JSON.parse(item.arguments);
      input.push({ type: "function_call_output", call_id: item.call_id, output: `a cat on the ${place}` });
    }
    const second = await client.responses.create({ model, input, tools: [look] });
    return { text: second.output_text };
  },
  async structured() {
    const schema = z.object({ name: z.string(), lives: z.number() });
    const text = { format: zodTextFormat(schema, "cat") };
    return { object: (await client.responses.parse({ model, input: "A cat!", text })).output_parsed };
  },
  async chain() {
    const first = await client.responses.create({ model, input: "I am Tom." });
    const second = await client.responses.create({ model, input: "Who am I?", previous_response_id: first.id });
    return { text: second.output_text };
  },
  async reasoning() {
    const response = await client.responses.create({ model, input: "Hi", reasoning: { summary: "auto" } });
    const { summary } = response.output.find((item) => item.type === "reasoning");
    return { text: response.output_text, reasoning: summary.map((part) => part.text).join("\n") };
  },
  async mcp() {
    const box = { type: "mcp", server_label: "box", server_url: mcp, require_approval: "never" };
    const response = await client.responses.create({ model, input: "2+3?", tools: [box] });
    const stream = client.responses.stream({ model, input: "2+3?", tools: [box] });
    return { text: response.output_text, pieces: await pieces(stream) };
  },
};

console.log(JSON.stringify(await SCENARIOS[scenario]()));
