'use strict';
/* Playground: settings, API key, presets and composer. The lanes are in playground_lane.js. */
(() => {
    const start = () => {
        const root = document.getElementById('playground');
        const settings = document.getElementById('play-settings');
        if (!root || !settings) return;
        const byId = (id) => document.getElementById(id);
        const data = JSON.parse(byId('playground-data').textContent);
        const csrf = root.querySelector('[name=csrfmiddlewaretoken]').value;
        const field = (name) => settings.elements[name];
        const composer = byId('play-composer');
        const input = byId('play-input');
        const status = byId('play-status');
        let key = null;
        let lanes = [];
        let begin = null;
        let sent = '';

        /* -- the key ----------------------------------------------------------------------------------------------- */

        const post = (url, values) => {
            const form = new FormData();
            for (const [name, value] of Object.entries(values)) form.append(name, value);
            return fetch(url, { method: 'POST', body: form, headers: { 'X-CSRFToken': csrf }, credentials: 'same-origin' });
        };

        let minting = null;
        const mint = async () => {
            const answer = await post(data.mint, { team: data.team });
            if (!answer.ok) throw new Error(`No API key could be created (HTTP ${answer.status}).`);
            const made = await answer.json();
            key = { ...made, until: Date.now() + (made.lives - 60) * 1000 };
            return key.key;
        };
        /* Lanes send at the same time: they share one request for a key. */
        const secret = () => {
            if (key && key.until > Date.now()) return Promise.resolve(key.key);
            minting ??= mint().finally(() => { minting = null; });
            return minting;
        };

        // The key is of no use without the page: do not leave it valid for the rest of its hour.
        addEventListener('pagehide', () => {
            if (!key) return;
            const form = new FormData();
            form.append('csrfmiddlewaretoken', csrf);
            form.append('key', key.id);
            navigator.sendBeacon(data.revoke, form);
            key = null;
        });

        const host = {
            async ask(path, body, signal) {
                const bearer = await secret();
                return fetch(path, {
                    method: 'POST', body: JSON.stringify(body), signal, credentials: 'omit',
                    headers: { Authorization: `Bearer ${bearer}`, 'Content-Type': 'application/json' },
                });
            },
            forgetKey() { key = null; },
            page: (id) => data.go.replace('ID', encodeURIComponent(id)),
            async markdown(text) {
                try {
                    const answer = await post(data.render, { text });
                    if (!answer.ok) return null;
                    return [...new DOMParser().parseFromString(await answer.text(), 'text/html').body.childNodes];
                } catch {
                    return null;
                }
            },
            async cost(id) {
                try {
                    const answer = await fetch(data.ended.replace('ID', encodeURIComponent(id)), { credentials: 'same-origin' });
                    return answer.ok ? (await answer.json()).cost : '';
                } catch {
                    return '';
                }
            },
            continueWith(lane, items) {
                const body = validBody();
                if (body) run([lane], body, items);
            },
        };

        /* -- settings ---------------------------------------------------------------------------------------------- */

        const showProblem = (name, text) => {
            const place = byId(`play-${name}-problem`);
            place.textContent = text;
            if (field(name)) field(name).setAttribute('aria-invalid', text ? 'true' : 'false');
            if (text) {
                const box = place.closest('details');
                if (box) box.open = true;
            }
            return text;
        };

        const json = (name, check) => {
            const text = field(name).value.trim();
            let value = null;
            let problem = '';
            if (text) {
                try {
                    value = JSON.parse(text);
                    problem = check(value) || '';
                } catch (failed) {
                    problem = `Invalid JSON: ${failed.message}`;
                }
            }
            showProblem(name, problem);
            if (problem) throw new Error(problem);
            return value;
        };

        const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
        const checkObject = (value) => (isObject(value) ? '' : 'Enter an object: {…}');
        const checkTools = (tools) => {
            if (!Array.isArray(tools)) return 'Enter an array of tools: [{…}]';
            for (const [index, tool] of tools.entries()) {
                if (!isObject(tool) || typeof tool.type !== 'string') return `Tool ${index + 1} needs a type.`;
                if (tool.type !== 'function') continue;
                if (!/^[a-zA-Z0-9_-]{1,64}$/.test(tool.name || '')) return `Function ${index + 1} needs a name of letters, digits, '_' and '-'.`;
                if (tool.parameters && !isObject(tool.parameters)) return `The parameters of ${tool.name} must be a JSON schema.`;
            }
            return '';
        };

        const tools = () => {
            const chosen = [...(json('functions', checkTools) || [])];
            if (field('web_search').checked) chosen.push({ type: 'web_search' });
            if (field('code_interpreter').checked) chosen.push({ type: 'code_interpreter', container: { type: 'auto' } });
            if (field('file_search').checked && field('store_id').value) chosen.push({ type: 'file_search', vector_store_ids: [field('store_id').value] });
            if (field('mcp').checked && field('mcp_url').value.trim()) {
                chosen.push({
                    type: 'mcp', server_label: field('mcp_label').value.trim() || 'server', server_url: field('mcp_url').value.trim(),
                    require_approval: field('mcp_approval').value,
                });
            }
            return chosen;
        };

        const buildBody = () => {
            const other = json('other', checkObject) || {};
            const body = { ...other, metadata: { ...other.metadata, source: 'playground' } };
            if (field('instructions').value) body.instructions = field('instructions').value;
            const chosen = tools();
            if (chosen.length) body.tools = chosen;
            for (const name of ['temperature', 'top_p', 'max_output_tokens']) {
                if (field(name).value !== '') body[name] = Number(field(name).value);
            }
            if (field('effort').value) body.reasoning = { ...other.reasoning, effort: field('effort').value };
            if (field('tool_choice').value) body.tool_choice = field('tool_choice').value;
            const schema = json('schema', checkObject);
            if (schema) {
                const format = schema.type === 'json_schema' ? schema : { type: 'json_schema', name: 'answer', schema };
                body.text = { ...other.text, format };
            }
            if (!field('store').checked) {
                body.store = false;
                body.include = body.include || ['reasoning.encrypted_content'];
            }
            if (field('background').checked) body.background = true;
            return body;
        };

        const validBody = () => {
            try {
                return buildBody();
            } catch {
                status.textContent = 'The settings contain invalid JSON.';
                return null;
            }
        };

        const showTools = () => {
            for (const box of settings.querySelectorAll('[data-for]')) box.hidden = !field(box.dataset.for).checked;
            let number = 0;
            try {
                number = tools().length;
            } catch { /* the problem is shown next to the field */ }
            byId('play-tool-count').textContent = number ? String(number) : '';
        };

        settings.addEventListener('change', showTools);
        settings.addEventListener('submit', (event) => event.preventDefault());
        byId('play-team').addEventListener('change', (event) => location.assign(`${data.here}?team=${encodeURIComponent(event.target.value)}`));
        byId('play-example').addEventListener('click', () => {
            let list = [];
            try {
                list = json('functions', checkTools) || [];
            } catch {
                return;
            }
            list.push({
                type: 'function', name: 'get_weather', description: 'Get the weather of a city.',
                parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false },
            });
            field('functions').value = JSON.stringify(list, null, 2);
            showTools();
        });

        /* -- loading a response or a preset ------------------------------------------------------------------------ */

        const fill = (body) => {
            const rest = { ...body };
            const take = (name) => {
                const value = rest[name];
                delete rest[name];
                return value;
            };
            field('model').value = take('model') || '';
            field('instructions').value = take('instructions') || '';
            const kept = take('tools') || [];
            for (const name of ['web_search', 'code_interpreter', 'file_search', 'mcp']) field(name).checked = false;
            field('functions').value = kept.length ? JSON.stringify(kept, null, 2) : '';
            for (const name of ['temperature', 'top_p', 'max_output_tokens']) field(name).value = take(name) ?? '';
            const choice = rest.tool_choice;
            field('tool_choice').value = '';
            if (['auto', 'required', 'none'].includes(choice)) field('tool_choice').value = take('tool_choice');
            const efforts = [...field('effort').options].map((option) => option.value);
            field('effort').value = '';
            if (isObject(rest.reasoning) && Object.keys(rest.reasoning).length === 1 && efforts.includes(rest.reasoning.effort)) field('effort').value = take('reasoning').effort;
            field('schema').value = '';
            if (isObject(rest.text) && rest.text.format && rest.text.format.type === 'json_schema') {
                const { format, ...text } = take('text');
                field('schema').value = JSON.stringify(format, null, 2);
                if (Object.keys(text).length) rest.text = text;
            }
            field('store').checked = take('store') !== false;
            field('background').checked = Boolean(take('background'));
            begin = take('previous_response_id') || null;
            setInput(take('input'));
            field('other').value = Object.keys(rest).length ? JSON.stringify(rest, null, 2) : '';
            showTools();
        };

        const setInput = (value) => {
            const only = Array.isArray(value) && value.length === 1 ? value[0] : null;
            const parts = only && only.role === 'user' && Array.isArray(only.content) ? only.content : null;
            const isText = parts && parts.length === 1 && parts[0].type === 'input_text';
            const text = typeof value === 'string' ? value : isText ? parts[0].text : null;
            byId('play-as-json').checked = text === null && Boolean(value);
            input.value = text ?? (value ? JSON.stringify(value, null, 2) : '');
        };

        const STORE = 'playground-presets';
        const presets = () => {
            try {
                return JSON.parse(localStorage.getItem(STORE) || '{}');
            } catch {
                return {};
            }
        };
        const showPresets = (chosen = '') => {
            const select = byId('play-presets');
            select.replaceChildren(new Option('None', ''), ...Object.keys(presets()).toSorted().map((name) => new Option(name, name)));
            select.value = chosen;
            byId('play-forget').hidden = !chosen;
        };
        byId('play-presets').addEventListener('change', (event) => {
            const kept = presets()[event.target.value];
            if (kept) fill({ ...kept, input: input.value });
            byId('play-forget').hidden = !kept;
        });
        byId('play-save').addEventListener('click', () => {
            const body = validBody();
            const name = body && prompt('Preset name', byId('play-presets').value);
            if (!name) return;
            localStorage.setItem(STORE, JSON.stringify({ ...presets(), [name.slice(0, 80)]: { ...body, model: field('model').value } }));
            showPresets(name.slice(0, 80));
            status.textContent = 'Preset saved in this browser.';
        });
        byId('play-forget').addEventListener('click', () => {
            const rest = presets();
            delete rest[byId('play-presets').value];
            localStorage.setItem(STORE, JSON.stringify(rest));
            showPresets();
        });

        /* -- copying ----------------------------------------------------------------------------------------------- */

        const python = (value, pad = '') => {
            if (value === null || value === undefined) return 'None';
            if (value === true) return 'True';
            if (value === false) return 'False';
            if (typeof value !== 'object') return JSON.stringify(value);
            const inner = `${pad}    `;
            const list = Array.isArray(value);
            const rows = list ? value.map((each) => python(each, inner)) : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each, inner)}`);
            if (!rows.length) return list ? '[]' : '{}';
            return `${list ? '[' : '{'}\n${rows.map((row) => `${inner}${row},\n`).join('')}${pad}${list ? ']' : '}'}`;
        };

        const copies = {
            json: (body) => JSON.stringify(body, null, 2),
            curl: (body) => `curl ${location.origin}/v1/responses \\\n  -H "Authorization: Bearer $API_KEY" -H "Content-Type: application/json" \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`,
            python: (body) => `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key=os.environ["API_KEY"])\nresponse = client.responses.create(\n    **${python(body, '    ')}\n)\nprint(response.output_text)\n`,
        };

        const copy = async (text) => {
            try {
                await navigator.clipboard.writeText(text);
            } catch {
                const box = document.createElement('textarea');
                box.value = text;
                document.body.append(box);
                box.select();
                document.execCommand('copy');
                box.remove();
            }
        };

        settings.addEventListener('click', async (event) => {
            const button = event.target.closest('[data-play-copy]');
            const body = button && validBody();
            if (!body) return;
            const whole = { model: field('model').value.trim(), input: read() ?? sent, ...body };
            const previous = lanes.length ? lanes[0].previous : begin;
            if (previous) whole.previous_response_id = previous;
            await copy(copies[button.dataset.playCopy](whole));
            status.textContent = 'Copied.';
        });

        /* -- sending ----------------------------------------------------------------------------------------------- */

        /* The input; null if it is empty, undefined if it is invalid. */
        const read = () => {
            byId('play-input-problem').textContent = '';
            if (!input.value.trim()) return null;
            if (!byId('play-as-json').checked) return input.value;
            try {
                const items = JSON.parse(input.value);
                if (Array.isArray(items)) return items;
                byId('play-input-problem').textContent = 'Enter an array of items: [{…}]';
            } catch (failed) {
                byId('play-input-problem').textContent = `Invalid JSON: ${failed.message}`;
            }
            return undefined;
        };

        const arrange = () => {
            const wanted = [field('model').value.trim(), field('model2').value.trim()].filter(Boolean);
            lanes = wanted.map((model, place) => {
                const kept = lanes[place];
                if (kept) {
                    kept.model = model;
                    kept.title.textContent = model;
                    return kept;
                }
                const made = new window.ConsoleLane(host, model);
                made.previous = begin;
                return made;
            });
            byId('play-lanes').replaceChildren(...lanes.map((lane) => lane.root));
            byId('play-lanes').classList.toggle('two', lanes.length > 1);
            byId('play-empty').hidden = lanes.length > 0;
        };

        const run = async (chosen, body, value) => {
            busy(true);
            await Promise.all(chosen.map((lane) => lane.send(body, value)));
            if (!lanes.some((lane) => lane.running)) busy(false);
        };

        const busy = (is) => {
            byId('play-stop').hidden = !is;
            byId('play-send').disabled = is;
            status.textContent = is ? 'Streaming …' : 'Done.';
        };

        const send = () => {
            if (lanes.some((lane) => lane.running)) return;
            const value = read();
            const body = validBody();
            if (value === undefined || !body) return;
            if (value === null) {
                byId('play-input-problem').textContent = 'Enter a message.';
                input.focus();
                return;
            }
            if (!field('model').value.trim()) {
                status.textContent = 'Select a model.';
                field('model').focus();
                return;
            }
            arrange();
            sent = value;
            input.value = '';
            byId('play-as-json').checked = false;
            run(lanes, body, value);
        };

        composer.addEventListener('submit', (event) => {
            event.preventDefault();
            send();
        });
        root.addEventListener('keydown', (event) => {
            if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
            event.preventDefault();
            const form = event.target.closest('.c-play-answer');
            if (form) form.requestSubmit();
            else send();
        });
        byId('play-stop').addEventListener('click', () => lanes.forEach((lane) => lane.stop()));
        byId('play-clear').addEventListener('click', () => {
            lanes.forEach((lane) => lane.stop());
            lanes = [];
            begin = null;
            byId('play-lanes').replaceChildren();
            byId('play-empty').hidden = false;
            input.focus();
        });

        showPresets();
        if (data.opened) fill(data.opened);
        else showTools();
    };

    if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', start);
    else start();
})();
