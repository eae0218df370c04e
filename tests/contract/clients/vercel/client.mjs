// An agent of the Vercel AI SDK: it calls a tool and answers, streamed or not. Prints what it got as JSON.
//
//     OPENAI_BASE_URL=… OPENAI_API_KEY=… node client.mjs <generate|stream> '{"model": …}'

import { createOpenAI } from "@ai-sdk/openai";
import { ToolLoopAgent, tool } from "ai";
import { z } from "zod";

const [, , mode, options] = process.argv;
const { model } = JSON.parse(options);
const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const look = tool({
  description: "Look at a place.",
  inputSchema: z.object({ place: z.string() }),
  execute: async ({ place }) => `a cat on the ${place}`,
});
const agent = new ToolLoopAgent({ model: openai.responses(model), instructions: "Watch.", tools: { look }, maxRetries: 0 });

const prompt = "What is on the sofa?";
const result = mode === "stream" ? await agent.stream({ prompt }) : await agent.generate({ prompt });
let streamed = "";
if (mode === "stream") for await (const piece of result.textStream) streamed += piece;
const steps = await result.steps;
console.log(
  JSON.stringify({
    text: await result.text,
    streamed,
    steps: steps.map((step) => ({ finish: step.finishReason, calls: step.toolCalls.map((call) => [call.toolName, call.input]) })),
    tokens: (await result.totalUsage).totalTokens,
    warnings: (await result.warnings) ?? [],
  }),
);
