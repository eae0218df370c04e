// Checks JSON against the types of the SDK: nulls and missing fields that the types do not allow, and wrong values.
//
//     node check.mjs FILE
//
// reads a line `{"type": "Response", "body": …}` for each body, and prints `[{"line", "type", "path", "message"}]`.

import { readFileSync } from "node:fs";
import { Ajv } from "ajv";
import { createGenerator } from "ts-json-schema-generator";

const schema = createGenerator({
  path: "roots.ts",
  type: "Roots",
  tsconfig: "tsconfig.json",
  skipTypeCheck: true,
  additionalProperties: true,
}).createSchema("Roots");
const { definitions } = schema;
const resolve = (part) => (part?.$ref ? resolve(definitions[decodeURIComponent(part.$ref.slice("#/definitions/".length))]) : part);
const tagsOf = (branch) => {
  const tag = resolve(branch)?.properties?.type;
  return tag ? (tag.const === undefined ? (tag.enum ?? []) : [tag.const]) : [];
};

// An error about one branch of a union says nothing unless the value's `type` belongs to that branch.
function narrow(part, seen = new Set()) {
  if (typeof part !== "object" || part === null || seen.has(part)) return;
  seen.add(part);
  for (const value of Object.values(part)) narrow(value, seen);
  const tags = part.anyOf?.map(tagsOf);
  if (!tags || tags.some((its) => its.length === 0) || new Set(tags.flat()).size !== tags.flat().length) return;
  const branches = part.anyOf;
  delete part.anyOf;
  part.type = "object";
  part.required = ["type"];
  part.properties = { type: { enum: tags.flat() } };
  part.allOf = branches.map((branch, index) => ({
    if: { properties: { type: { enum: tags[index] } }, required: ["type"] },
    then: branch,
  }));
}
narrow(schema);

const ajv = new Ajv({ allErrors: true, strict: false });
ajv.addSchema(schema, "types");
const validators = Object.fromEntries(
  Object.keys(resolve(schema).properties).map((name) => [
    name,
    ajv.compile({ $ref: `types#/definitions/Roots/properties/${name}` }),
  ]),
);
const defects = [];
readFileSync(process.argv[2], "utf8")
  .split("\n")
  .filter(Boolean)
  .forEach((text, line) => {
    const { type, body } = JSON.parse(text);
    const validate = validators[type];
    if (!validate) throw new Error(`roots.ts does not name ${type}`);
    if (validate(body)) return;
    for (const error of validate.errors.filter(({ keyword }) => keyword !== "if"))
      defects.push({ line, type, path: error.instancePath, message: `${error.message} ${JSON.stringify(error.params)}` });
  });
console.log(JSON.stringify(defects));
