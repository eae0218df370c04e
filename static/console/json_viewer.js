'use strict';
/* JSON as a tree: fold, search, copy the path of a value. A <pre data-json> with a JSON document becomes a tree beside its
   text; a [data-json-open] button does this for the text of its part, and a [data-json-load] link for the document it leads
   to. Values are inserted as text nodes, and children only when their parent is opened, so megabytes stay usable. */
(() => {
    const PAGE = 100, SHORT = 300, WHOLE = 100000, MOST_MATCHES = 500, SLICE = 4000;
    let number = 0;

    const el = (tag, kind, text) => {
        const made = document.createElement(tag);
        if (kind) made.className = kind;
        if (text !== undefined) made.textContent = text;
        return made;
    };
    const isBranch = (value) => value !== null && typeof value === 'object';
    const step = (key) => typeof key === 'number' ? `[${key}]` : /^[A-Za-z_$][\w$]*$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`;
    const pathOf = (keys) => keys.map(step).join('').replace(/^\./, '') || '$';
    const keysOf = (value) => Array.isArray(value) ? value.keys() : Object.keys(value);
    const sizeOf = (value) => Array.isArray(value) ? value.length : Object.keys(value).length;
    const summary = (value) => {
        const count = sizeOf(value);
        return Array.isArray(value) ? `[ ${count} ${count === 1 ? 'entry' : 'entries'} ]` : `{ ${count} ${count === 1 ? 'key' : 'keys'} }`;
    };

    class Tree {
        constructor(data, text) {
            this.data = data;
            this.matches = [];
            this.root = el('div', 'c-json');
            this.tree = el('ul', 'c-json-tree');
            this.tree.setAttribute('role', 'tree');
            this.tree.setAttribute('aria-label', 'JSON');
            this.root.append(this.bar(text), this.tree);
            this.tree.append(this.item(null, data, []));
            this.current = this.tree.firstElementChild;
            this.current.row.tabIndex = 0;
            this.open(this.current);
            this.tree.addEventListener('click', (event) => this.clicked(event));
            this.tree.addEventListener('keydown', (event) => this.pressed(event));
        }

        bar(text) {
            const bar = el('div', 'c-json-bar');
            const search = el('input', 'c-input');
            search.type = 'search';
            search.placeholder = 'Search keys and values';
            search.setAttribute('aria-label', 'Search the JSON');
            this.status = el('span', 'c-note');
            this.status.setAttribute('role', 'status');
            const button = (title, act) => {
                const made = el('button', 'c-button plain', title);
                made.type = 'button';
                made.addEventListener('click', act);
                return made;
            };
            search.addEventListener('input', () => {
                clearTimeout(this.timer);
                this.timer = setTimeout(() => this.search(search.value), 200);
            });
            search.addEventListener('keydown', (event) => {
                if (event.key !== 'Enter') return;
                event.preventDefault();
                this.show(event.shiftKey ? -1 : 1);
            });
            const previous = button('Previous', () => this.show(-1)), next = button('Next', () => this.show(1));
            bar.append(search, previous, next, button('Open all', () => this.openAll()), button('Fold all', () => this.foldAll()));
            bar.append(button('Copy path', () => this.copyPath()));
            if (text) {
                const plain = button('Text', () => {
                    text.hidden = !text.hidden;
                    this.tree.hidden = !text.hidden;
                    plain.textContent = text.hidden ? 'Text' : 'Tree';
                });
                bar.append(plain);
            }
            bar.append(this.status);
            return bar;
        }

        /** The element of a value. Its children are made when it is opened. */
        item(key, value, keys) {
            const item = el('li', 'c-json-item');
            const row = this.row(item, keys.length + 1);
            Object.assign(item, { json: value, keys });
            if (key !== null) row.append(el('span', 'c-json-key', String(key)), ': ');
            if (isBranch(value)) {
                row.append(el('span', 'c-json-size', summary(value)));
                if (sizeOf(value)) row.setAttribute('aria-expanded', 'false');
            } else {
                row.append(this.leaf(item, SHORT));
            }
            return item;
        }

        /** The row of an element, which has its role: the name of a tree item would include its children. */
        row(item, level, text) {
            item.setAttribute('role', 'none');
            item.row = el('span', 'c-json-row', text);
            item.row.setAttribute('role', 'treeitem');
            item.row.setAttribute('aria-level', level);
            item.row.tabIndex = -1;
            item.append(item.row);
            return item.row;
        }

        leaf(item, most) {
            const value = item.json, written = typeof value === 'string' ? JSON.stringify(value.slice(0, most)) : String(value);
            const rest = typeof value === 'string' ? value.length - most : 0;
            const kind = value === null ? 'null' : typeof value;
            return el('span', `c-json-${kind}`, rest > 0 ? `${written} … ${rest.toLocaleString('en')} more characters` : written);
        }

        open(item, least = 0) {
            if (!item.row.hasAttribute('aria-expanded')) return;
            item.row.setAttribute('aria-expanded', 'true');
            if (!item.group) {
                item.group = el('ul', 'c-json-group');
                item.group.setAttribute('role', 'group');
                item.group.id = `json-${number += 1}`;
                item.row.setAttribute('aria-owns', item.group.id);
                item.rest = [...keysOf(item.json)];
                item.append(item.group);
                this.grow(item);
            }
            item.group.hidden = false;
            while (item.rest.length && item.group.childElementCount <= least) this.grow(item);
        }

        /** Add the next children, and an entry that adds more. */
        grow(item) {
            if (item.more) item.more.remove();
            for (const key of item.rest.splice(0, PAGE)) item.group.append(this.item(key, item.json[key], [...item.keys, key]));
            item.more = null;
            if (!item.rest.length) return;
            item.more = el('li', 'c-json-item c-json-more');
            this.row(item.more, item.keys.length + 2, `Show more: ${item.rest.length.toLocaleString('en')} left`);
            Object.assign(item.more, { keys: item.keys, grows: item });
            item.group.append(item.more);
        }

        fold(item) {
            if (!item.row.hasAttribute('aria-expanded')) return;
            item.row.setAttribute('aria-expanded', 'false');
            if (item.group) item.group.hidden = true;
        }

        /** Open branches, breadth first, up to a number that a page can show. */
        openAll() {
            const queue = [this.tree.firstElementChild];
            let opened = 0;
            for (let item = queue.shift(); item && opened < 300; item = queue.shift()) {
                this.open(item);
                opened += 1;
                queue.push(...item.group ? [...item.group.children].filter((child) => child.row.hasAttribute('aria-expanded')) : []);
            }
            this.status.textContent = queue.length ? 'The first 300 branches were opened.' : '';
        }

        foldAll() {
            const root = this.tree.firstElementChild;
            for (const row of root.querySelectorAll('.c-json-group [aria-expanded="true"]')) this.fold(row.parentElement);
            this.fold(root);
            this.focus(root);
        }

        toggle(item) {
            if (item.grows) {
                const owner = item.grows, at = owner.group.childElementCount - 1;
                this.grow(owner);
                this.focus(owner.group.children[at]);
            } else if (item.row.hasAttribute('aria-expanded')) {
                if (item.row.getAttribute('aria-expanded') === 'true') this.fold(item);
                else this.open(item);
            } else if (typeof item.json === 'string' && item.json.length > SHORT) {
                item.isWhole = !item.isWhole;
                item.row.lastElementChild.replaceWith(this.leaf(item, item.isWhole ? WHOLE : SHORT));
            }
        }

        focus(item) {
            this.current.row.tabIndex = -1;
            this.current = item;
            item.row.tabIndex = 0;
            item.row.focus();
            item.row.scrollIntoView({ block: 'nearest' });
        }

        visible() {
            return [...this.tree.querySelectorAll('.c-json-item')].filter((item) => !item.parentElement.closest('[hidden]'));
        }

        clicked(event) {
            const item = event.target.closest('.c-json-item');
            if (!item || String(getSelection())) return;
            this.focus(item);
            this.toggle(item);
        }

        pressed(event) {
            if (event.altKey || event.ctrlKey || event.metaKey) return;
            const item = this.current, isOpen = item.row.getAttribute('aria-expanded');
            const move = (by) => {
                const all = this.visible(), next = all[all.indexOf(item) + by];
                if (next) this.focus(next);
            };
            switch (event.key) {
                case 'ArrowDown': move(1); break;
                case 'ArrowUp': move(-1); break;
                case 'ArrowRight': if (isOpen === 'false') this.open(item); else if (isOpen) move(1); break;
                case 'ArrowLeft': {
                    const parent = item.parentElement.closest('.c-json-item');
                    if (isOpen === 'true') this.fold(item);
                    else if (parent) this.focus(parent);
                    break;
                }
                case 'Home': this.focus(this.tree.firstElementChild); break;
                case 'End': this.focus(this.visible().at(-1)); break;
                case 'Enter': case ' ': this.toggle(item); break;
                default: return;
            }
            event.preventDefault();
            event.stopPropagation();
        }

        async copyPath() {
            const path = pathOf(this.current.keys);
            try {
                await navigator.clipboard.writeText(path);
                this.status.textContent = `Copied ${path}`;
            } catch {
                this.status.textContent = path;
            }
        }

        /** Collect the paths of matches in slices, so that the page stays responsive. */
        search(words) {
            const wanted = words.toLowerCase(), stack = [[null, this.data, []]], run = this.run = {};
            this.matches = [];
            this.at = -1;
            if (!wanted) {
                this.status.textContent = '';
                return;
            }
            const slice = () => {
                if (run !== this.run) return;
                for (let count = 0; count < SLICE && stack.length && this.matches.length < MOST_MATCHES; count += 1) {
                    const [key, value, keys] = stack.pop();
                    const isHit = (typeof key === 'string' && key.toLowerCase().includes(wanted))
                        || (!isBranch(value) && String(value).toLowerCase().includes(wanted));
                    if (isHit) this.matches.push(keys);
                    if (!isBranch(value)) continue;
                    const children = [...keysOf(value)];
                    for (let index = children.length - 1; index >= 0; index -= 1) {
                        stack.push([children[index], value[children[index]], [...keys, children[index]]]);
                    }
                }
                const isComplete = !stack.length || this.matches.length >= MOST_MATCHES;
                this.report(isComplete ? '' : ' so far');
                if (!isComplete) setTimeout(slice);
            };
            slice();
        }

        report(suffix = '') {
            const count = this.matches.length, most = count >= MOST_MATCHES ? '+' : '';
            this.status.textContent = this.at >= 0 ? `${this.at + 1} of ${count}${most}` : `${count || 'No'}${most} match${count === 1 ? '' : 'es'}${suffix}`;
        }

        /** Open the next match and select it. */
        show(by) {
            if (!this.matches.length) return;
            this.at = (this.at + by + this.matches.length) % this.matches.length;
            if (this.at < 0) this.at = 0;
            let item = this.tree.firstElementChild;
            for (const key of this.matches[this.at]) {
                const index = Array.isArray(item.json) ? key : Object.keys(item.json).indexOf(key);
                this.open(item, index + 1);
                item = item.group.children[index];
            }
            const search = document.activeElement;
            this.focus(item);
            for (const marked of this.tree.querySelectorAll('.is-match')) marked.classList.remove('is-match');
            item.classList.add('is-match');
            // Enter in the search field leads from match to match.
            if (search && search.type === 'search') search.focus({ preventScroll: true });
            this.report();
        }
    }

    /** Show a JSON document as a tree, before its text if it is on the page. Other text stays as it is. */
    function show(text, place, element) {
        let data;
        try {
            data = JSON.parse(text);
        } catch {
            return false;
        }
        if (!isBranch(data)) return false;
        place.before(new Tree(data, element).root);
        if (element) element.hidden = true;
        return true;
    }

    function enhance(root) {
        for (const element of root.querySelectorAll('pre[data-json]')) {
            element.removeAttribute('data-json');
            show(element.textContent, element, element);
        }
    }

    async function load(link) {
        link.setAttribute('aria-busy', 'true');
        try {
            const answer = await fetch(link.href, { credentials: 'same-origin' });
            if (!answer.ok) throw new Error(String(answer.status));
            const box = link.closest('[data-json-box]');
            if (show(await answer.text(), box)) box.remove();
        } catch {
            link.textContent = 'Loading failed. Try again';
        } finally {
            link.removeAttribute('aria-busy');
        }
    }

    document.addEventListener('click', (event) => {
        const target = event.target instanceof Element ? event.target : null;
        const link = target?.closest('a[data-json-load]');
        if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
            event.preventDefault();
            load(link);
        }
        const button = target?.closest('[data-json-open]');
        if (button) {
            const element = button.closest('.c-piece').querySelector('[data-text]');
            if (show(element.textContent, element, element)) button.remove();
        }
    });
    enhance(document);
    document.addEventListener('htmx:afterSettle', (event) => enhance(event.target));
})();
