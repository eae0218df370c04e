// Typical use of the OpenAI Agents SDK for JavaScript. Runs a scenario and prints its result as JSON.
//
//     OPENAI_BASE_URL=… OPENAI_API_KEY=… node client.mjs <scenario> '{"model": …}'

import { Agent, hostedMcpTool, run, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";

const [, , scenario, options] = process.argv;
const { model, mcp } = JSON.parse(options);
setTracingDisabled(true);
const look = tool({
  name: "look",
  description: "Look at a place.",
  parameters: z.object({ place: z.string() }),
  execute: async ({ place }) => `a cat on the ${place}`,
});

function agent(settings = {}) {
  return new Agent({ name: "Watcher", instructions: "Watch.", model, ...settings });
}

async function pieces(watcher, prompt) {
  const result = await run(watcher, prompt, { stream: true });
  const found = [];
  for await (const event of result) {
    if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") found.push(event.data.delta);
  }
  await result.completed;
  return found;
}

const SCENARIOS = {
  async text() {
    return { text: (await run(agent(), "Hi")).finalOutput };
  },
  async streaming() {
    const found = await pieces(agent(), "Hi");
    return { pieces: found, text: found.join("") };
  },
  async tools() {
    return { text: (await run(agent({ tools: [look] }), "What is on the sofa?")).finalOutput };
  },
  async structured() {
    const outputType = z.object({ name: z.string(), lives: z.number() });
    return { object: (await run(agent({ outputType }), "A cat!")).finalOutput };
  },
  async chain() {
    const first = await run(agent(), "I am Tom.");
    const second = await run(agent(), "Who am I?", { previousResponseId: first.lastResponseId });
    return { text: second.finalOutput };
  },
  async reasoning() {
    const modelSettings = { reasoning: { effort: "low", summary: "auto" } };
    const result = await run(agent({ modelSettings }), "Hi");
    const thoughts = result.newItems.filter((item) => item.type === "reasoning_item");
    const parts = thoughts.flatMap((item) => item.rawItem.content);
    return { text: result.finalOutput, reasoning: parts.map((part) => part.text).join("\n") };
  },
  async mcp() {
    const adder = agent({ tools: [hostedMcpTool({ serverLabel: "box", serverUrl: mcp, requireApproval: "never" })] });
    return { text: (await run(adder, "2+3?")).finalOutput, pieces: await pieces(adder, "2+3?") };
  },
};

console.log(JSON.stringify(await SCENARIOS[scenario]()));
