// Typical use of the Vercel AI SDK. Runs a scenario and prints its result as JSON.
//
//     OPENAI_BASE_URL=… OPENAI_API_KEY=… node client.mjs <scenario> '{"model": …}'

import { createOpenAI } from "@ai-sdk/openai";
import { ToolLoopAgent, generateObject, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const [, , scenario, options] = process.argv;
const { model: name, mcp } = JSON.parse(options);
const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const model = openai.responses(name);
const common = { model, maxRetries: 0 };
const look = tool({
  description: "Look at a place.",
  inputSchema: z.object({ place: z.string() }),
  execute: async ({ place }) => `a cat on the ${place}`,
});
const QUESTION = "What is on the sofa?";

async function pieces(result) {
  const found = [];
  for await (const piece of result.textStream) found.push(piece);
  return found;
}

async function agent(streamed) {
  const watcher = new ToolLoopAgent({ ...common, instructions: "Watch.", tools: { look } });
  const result = streamed ? await watcher.stream({ prompt: QUESTION }) : await watcher.generate({ prompt: QUESTION });
  const parts = streamed ? await pieces(result) : [];
  const steps = await result.steps;
  return {
    text: await result.text,
    pieces: parts,
    steps: steps.map((step) => ({ finish: step.finishReason, calls: step.toolCalls.map((call) => [call.toolName, call.input]) })),
    tokens: (await result.totalUsage).totalTokens,
    warnings: (await result.warnings) ?? [],
  };
}

const SCENARIOS = {
  async text() {
    const { text } = await generateText({ ...common, prompt: "Hi" });
    return { text };
  },
  async streaming() {
    const result = streamText({ ...common, prompt: "Hi" });
    return { pieces: await pieces(result), text: await result.text };
  },
  async tools() {
    const { text } = await generateText({ ...common, prompt: QUESTION, tools: { look }, stopWhen: isStepCount(3) });
    return { text };
  },
  async structured() {
    const schema = z.object({ name: z.string(), lives: z.number() });
    const { object } = await generateObject({ ...common, prompt: "A cat!", schema });
    return { object };
  },
  async chain() {
    const first = await generateText({ ...common, prompt: "I am Tom." });
    const previousResponseId = first.providerMetadata.openai.responseId;
    const second = await generateText({ ...common, prompt: "Who am I?", providerOptions: { openai: { previousResponseId } } });
    return { text: second.text };
  },
  async reasoning() {
    const reasoned = { openai: { forceReasoning: true, reasoningSummary: "auto", reasoningEffort: "low" } };
    const { text, reasoningText } = await generateText({ ...common, prompt: "Hi", providerOptions: reasoned });
    return { text, reasoning: reasoningText };
  },
  async mcp() {
    const box = openai.tools.mcp({ serverLabel: "box", serverUrl: mcp, requireApproval: "never" });
    const whole = await generateText({ ...common, prompt: "2+3?", tools: { box } });
    const streamed = streamText({ ...common, prompt: "2+3?", tools: { box } });
    return { text: whole.text, pieces: await pieces(streamed) };
  },
  agent: () => agent(false),
  streamed_agent: () => agent(true),
};

console.log(JSON.stringify(await SCENARIOS[scenario]()));
