'use strict';
/* A lane of the playground: the conversation with one model. It calls the API and shows items and events as they arrive.
   Model output is inserted as text nodes. The one exception is Markdown that the server has rendered and sanitised. */
(() => {
    const MOST_EVENTS = 2000;
    const ICONS = {
        function_call: 'function', custom_tool_call: 'function', web_search_call: 'travel_explore', mcp_call: 'lan',
        mcp_list_tools: 'lan', mcp_approval_request: 'front_hand', file_search_call: 'search', shell_call: 'terminal',
        code_interpreter_call: 'code', image_generation_call: 'image',
    };
    const HIDDEN = new Set(['id', 'type', 'status', 'name', 'call_id', 'server_label', 'arguments', 'input', 'code', 'output', 'error', 'encrypted_content']);

    const el = (tag, kind, text) => {
        const made = document.createElement(tag);
        if (kind) made.className = kind;
        if (kind === 'c-play-text') made.dir = 'auto';
        if (text !== undefined) made.textContent = text;
        return made;
    };
    const icon = (name) => {
        const made = el('span', 'material-symbols-outlined', name);
        made.setAttribute('aria-hidden', 'true');
        return made;
    };
    /** A status in the spelling of all pages: "In progress". */
    const words = (status) => status.charAt(0).toUpperCase() + status.slice(1).replaceAll('_', ' ');
    const pretty = (value) => {
        if (typeof value !== 'string') return JSON.stringify(value, null, 2);
        try {
            return JSON.stringify(JSON.parse(value), null, 2);
        } catch {
            return value;
        }
    };
    const pre = (text) => {
        const made = el('pre', 'c-pre', text);
        made.tabIndex = 0;
        return made;
    };
    const took = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);
    const count = (number) => Number(number || 0).toLocaleString('en');

    class Lane {
        constructor(host, model) {
            this.host = host;
            this.model = model;
            this.previous = null;
            this.history = [];
            this.running = null;
            this.root = el('section', 'c-play-lane');
            this.title = el('h2', '', model);
            this.talk = el('div', 'c-play-talk');
            this.events = el('details', 'c-play-events');
            const summary = el('summary', '', 'Events ');
            this.counted = el('small', '', '0');
            summary.append(this.counted);
            this.list = el('ol');
            this.list.tabIndex = 0;
            this.list.setAttribute('aria-label', `Events of ${model}`);
            this.events.append(summary, this.list);
            this.events.open = innerWidth >= 1400;
            this.root.setAttribute('aria-label', `Conversation with ${model}`);
            this.root.append(this.title, this.talk, this.events);
            this.list.addEventListener('toggle', (event) => {
                const box = event.target;
                if (box.open && box.event) {
                    box.append(pre(JSON.stringify(box.event, null, 2)));
                    box.event = null;
                }
            }, true);
        }

        /* Send a request. It continues the conversation of this lane: by `previous_response_id`, or with the whole history
           where responses are not stored. */
        async send(body, input) {
            const items = typeof input === 'string' ? [{ role: 'user', content: input }] : input;
            this.say(input);
            const request = { ...body, model: this.model, stream: true };
            if (this.previous) request.previous_response_id = this.previous;
            request.input = this.previous || !this.history.length ? input : [...this.history, ...items];
            const run = {
                request, items, began: performance.now(), first: null, id: null, cards: new Map(), last: null, ended: false,
                controller: new AbortController(), line: el('p', 'c-play-line', 'Sending …'),
            };
            this.running = run;
            this.talk.append(run.line);
            try {
                const answer = await this.host.ask('/v1/responses', request, run.controller.signal);
                if (answer.ok) await this.read(run, answer.body.getReader());
                else await this.refused(run, answer);
                await run.cancelling;
                if (answer.ok && !run.last && !run.failed) this.showError(run, 'Stream ended early', 'The stream ended without a final event.');
            } catch (problem) {
                await run.cancelling;
                if (problem.name === 'AbortError') this.note(run, 'Stopped. The stream was closed.');
                else this.showError(run, 'Connection lost', String(problem.message || problem));
            } finally {
                run.ended = true;
                this.running = null;
                this.summarise(run);
            }
            return run;
        }

        async read(run, reader) {
            const decoder = new TextDecoder();
            let rest = '';
            for (;;) {
                const { done, value } = await reader.read();
                rest += decoder.decode(value || new Uint8Array(), { stream: !done });
                const frames = rest.split('\n\n');
                rest = frames.pop();
                for (const frame of frames) {
                    const data = frame.split('\n').filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trim()).join('\n');
                    if (data && data !== '[DONE]') this.take(run, JSON.parse(data));
                }
                if (done) break;
            }
        }

        async refused(run, answer) {
            const text = await answer.text();
            if (answer.status === 401) this.host.forgetKey();
            this.showError(run, `HTTP ${answer.status}`, pretty(text));
        }

        take(run, event) {
            this.log(run, event);
            const card = () => run.cards.get(event.output_index);
            if (event.type.endsWith('.delta') && run.first === null) run.first = performance.now() - run.began;
            switch (event.type) {
                case 'response.created':
                    run.id = event.response.id;
                    break;
                case 'response.output_item.added':
                    run.cards.set(event.output_index, this.card(event.item));
                    break;
                case 'response.output_item.done':
                    if (!card()) run.cards.set(event.output_index, this.card(event.item));
                    this.finish(card(), event.item);
                    break;
                case 'response.output_text.delta':
                case 'response.refusal.delta':
                case 'response.reasoning_summary_text.delta':
                case 'response.reasoning_text.delta':
                case 'response.function_call_arguments.delta':
                case 'response.mcp_call_arguments.delta':
                case 'response.custom_tool_call_input.delta':
                case 'response.code_interpreter_call_code.delta':
                    if (card()) card().words.append(event.delta);
                    break;
                case 'response.completed':
                case 'response.incomplete':
                case 'response.failed':
                case 'response.cancelled':
                    run.last = event.response;
                    break;
                case 'error':
                    run.failed = true;
                    this.showError(run, 'Error', pretty(event));
                    break;
                default:
                    if (card() && card().state) card().state.textContent = words(event.type.split('.').pop());
            }
            run.line.textContent = run.first === null ? 'Waiting for the first token …' : 'Streaming …';
        }

        log(run, event) {
            const number = Number(this.counted.textContent) + 1;
            this.counted.textContent = String(number);
            if (number > MOST_EVENTS) return;
            const box = el('details');
            const head = el('summary');
            head.append(el('code', 'c-code', event.type), el('small', '', `${Math.round(performance.now() - run.began)} ms`));
            box.append(head);
            box.event = event;
            const row = el('li');
            row.append(box);
            this.list.append(row);
            if (this.events.open) this.list.scrollTop = this.list.scrollHeight;
        }

        /* -- messages and items ------------------------------------------------------------------------------------ */

        say(input) {
            const box = el('article', 'c-play-user');
            box.append(el('h3', '', 'You'));
            if (typeof input === 'string') box.append(el('p', 'c-play-text', input));
            else box.append(pre(JSON.stringify(input, null, 2)));
            this.talk.append(box);
        }

        card(item) {
            const made = { item, root: null, words: el('div', 'c-play-text'), state: null };
            if (item.type === 'message') {
                made.root = el('article', 'c-play-message');
                made.root.append(el('h3', '', 'Assistant'), made.words);
            } else if (item.type === 'reasoning') {
                made.root = el('details', 'c-play-thinking');
                const summary = el('summary', '', 'Reasoning');
                summary.prepend(icon('psychology'));
                made.root.append(summary, made.words);
            } else {
                made.root = el('article', 'c-play-call');
                const head = el('h3');
                const name = [item.server_label, item.name].filter(Boolean).join(': ') || item.type.replaceAll('_', ' ');
                made.state = el('small', '', words(item.status || ''));
                head.append(icon(ICONS[item.type] || 'build'), el('span', '', name), made.state);
                made.words = pre('');
                made.root.append(head, made.words);
            }
            made.root.dataset.itemId = item.id || '';
            this.talk.insertBefore(made.root, this.running ? this.running.line : null);
            return made;
        }

        finish(card, item) {
            card.item = item;
            if (item.type === 'message') {
                const text = (item.content || []).map((part) => part.text || part.refusal || '').join('\n\n');
                card.words.textContent = text;
                if (text) this.host.markdown(text).then((nodes) => nodes && card.words.replaceChildren(...nodes));
                if (text) card.words.classList.add('c-prose');
                return;
            }
            if (item.type === 'reasoning') {
                const parts = (item.content && item.content.length ? item.content : item.summary) || [];
                card.words.textContent = parts.map((part) => part.text || '').join('\n\n') || 'No readable reasoning.';
                return;
            }
            if (card.state) card.state.textContent = words(item.status || 'done');
            const input = item.arguments ?? item.input ?? item.code;
            const rest = Object.fromEntries(Object.entries(item).filter(([name, value]) => !HIDDEN.has(name) && value !== null));
            card.words.textContent = input !== undefined && input !== null ? pretty(input) : '';
            card.words.hidden = !card.words.textContent;
            if (Object.keys(rest).length) card.root.append(pre(JSON.stringify(rest, null, 2).slice(0, 20000)));
            for (const name of ['output', 'error']) {
                if (item[name]) card.root.append(el('h4', '', name), pre(pretty(item[name]).slice(0, 20000)));
            }
        }

        note(run, text) {
            this.talk.insertBefore(el('p', 'c-note', text), run.line);
        }

        showError(run, title, text) {
            const box = el('div', 'c-play-error');
            box.setAttribute('role', 'alert');
            box.append(el('strong', '', title), pre(text));
            this.talk.insertBefore(box, run.line);
        }

        /* -- the end ----------------------------------------------------------------------------------------------- */

        summarise(run) {
            const facts = [];
            if (run.last) facts.push(words(run.last.status));
            if (run.first !== null) facts.push(`first token ${took(run.first)}`);
            facts.push(`total ${took(performance.now() - run.began)}`);
            const usage = run.last && run.last.usage;
            if (usage) {
                const cached = (usage.input_tokens_details || {}).cached_tokens;
                const thought = (usage.output_tokens_details || {}).reasoning_tokens;
                facts.push(`${count(usage.input_tokens)} tokens in${cached ? ` (${count(cached)} cached)` : ''}`);
                facts.push(`${count(usage.output_tokens)} out${thought ? ` (${count(thought)} reasoning)` : ''}`);
            }
            run.line.textContent = facts.join(' · ');
            if (run.last) this.ended(run);
            if (run.id) {
                const link = el('a', 'c-link c-code', run.id);
                link.href = this.host.page(run.id);
                run.line.append(' · ', link);
                this.host.cost(run.id).then((cost) => cost && run.line.append(` · ${cost}`));
            }
        }

        ended(run) {
            const last = run.last;
            if (last.error) this.showError(run, last.error.code || 'failed', last.error.message || '');
            if (last.incomplete_details) this.note(run, `Incomplete: ${last.incomplete_details.reason}.`);
            if (last.status === 'failed' || last.status === 'cancelled') return;
            if (last.store === false) {
                this.history = [...(run.request.input && Array.isArray(run.request.input) ? run.request.input : run.items), ...last.output];
            } else this.previous = last.id;
            this.wait(run, last.output);
        }

        /* Client tool calls and approval requests: a form collects the outputs and decisions, and sends them together. */
        wait(run, output) {
            const calls = output.filter((item) => item.type === 'function_call' || item.type === 'custom_tool_call');
            const approvals = output.filter((item) => item.type === 'mcp_approval_request');
            if (!calls.length && !approvals.length) return;
            const form = el('form', 'c-play-answer');
            const answers = new Map();
            for (const call of calls) {
                const label = el('label', '', `Output of ${call.name} `);
                const box = el('textarea', 'c-input c-code');
                box.rows = 2;
                box.required = true;
                box.placeholder = '{"result": …}';
                label.append(box);
                form.append(label);
                answers.set(call.call_id, () => ({ type: `${call.type}_output`, call_id: call.call_id, output: box.value }));
            }
            for (const approval of approvals) {
                const group = el('fieldset');
                group.append(el('legend', '', `${approval.server_label}: ${approval.name} needs approval`));
                for (const [value, words] of [['yes', 'Approve'], ['no', 'Deny']]) {
                    const label = el('label');
                    const radio = el('input');
                    Object.assign(radio, { type: 'radio', name: approval.id, value, required: true });
                    label.append(radio, ` ${words}`);
                    group.append(label);
                }
                form.append(group);
                answers.set(approval.id, () => ({
                    type: 'mcp_approval_response', approval_request_id: approval.id, approve: form.elements[approval.id].value === 'yes',
                }));
            }
            const button = el('button', 'c-button', approvals.length && !calls.length ? 'Send decision' : 'Send outputs');
            button.type = 'submit';
            form.append(button);
            form.addEventListener('submit', (event) => {
                event.preventDefault();
                if (this.running) return;
                const items = [...answers.values()].map((answer) => answer());
                form.remove();
                this.host.continueWith(this, items);
            });
            this.talk.append(form);
        }

        stop() {
            const run = this.running;
            if (!run) return;
            if (run.request.background && run.id) {
                // The stream has no event for a cancelled run: the answer to this request has the final state.
                run.cancelling = this.host.ask(`/v1/responses/${run.id}/cancel`, {})
                    .then(async (answer) => { if (answer.ok) run.last = await answer.json(); })
                    .catch(() => run.controller.abort());
                setTimeout(() => run.ended || run.controller.abort(), 5000);
            } else run.controller.abort();
        }
    }

    window.ConsoleLane = Lane;
})();
