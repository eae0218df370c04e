/* Guided page that connects an upstream: well-known servers fill in the form, and the list of models is searched. */
(() => {
    'use strict';

    const field = (form, name) => form.elements.namedItem(name);

    const usePreset = (select) => {
        const form = select.form;
        const chosen = select.selectedOptions[0];
        if (!chosen.value) return;
        field(form, 'address').value = chosen.value;
        field(form, 'api').value = chosen.dataset.api;
        const presets = [...select.options].map((option) => option.dataset.name);
        const name = field(form, 'name');
        // A name that was entered stays.
        if (!name.value || presets.includes(name.value)) name.value = chosen.dataset.name;
    };

    const search = (box) => {
        const words = box.value.trim().toLowerCase();
        const step = box.closest('fieldset');
        let shown = 0;
        for (const row of step.querySelectorAll('.c-connect-list li')) {
            // A selected model stays visible.
            row.hidden = !row.textContent.toLowerCase().includes(words) && !row.querySelector('input').checked;
            shown += row.hidden ? 0 : 1;
        }
        step.querySelector('[data-connect-none]').hidden = shown > 0;
    };

    const boxes = (step) => [...step.querySelectorAll('[name="models"]')];

    const count = (step) => {
        step.querySelector('[data-connect-count]').textContent = boxes(step).filter((box) => box.checked).length;
    };

    const select = (button) => {
        const step = button.closest('fieldset');
        const checked = button.dataset.connectSelect === 'all';
        // Rows that the search hides stay as they are.
        for (const box of boxes(step)) if (!box.closest('li').hidden) box.checked = checked;
        count(step);
    };

    document.addEventListener('change', (event) => {
        if (event.target.matches('[data-connect-presets]')) usePreset(event.target);
        if (event.target.matches('.c-connect [name="models"]')) count(event.target.closest('fieldset'));
    });
    document.addEventListener('input', (event) => {
        if (event.target.matches('[data-connect-search]')) search(event.target);
    });
    document.addEventListener('keydown', (event) => {
        // The browser would press the first button of the form, which tests the server again.
        const step = event.target.closest('.c-connect .c-step');
        if (event.key !== 'Enter' || !step || !event.target.matches('input')) return;
        event.preventDefault();
        if (!event.target.matches('[data-connect-search]')) step.querySelector('[data-connect-main]')?.click();
    });
    document.addEventListener('click', (event) => {
        const selecting = event.target.closest('[data-connect-select]');
        if (selecting) select(selecting);
        const button = event.target.closest('[data-connect-address]');
        if (!button) return;
        field(button.form, 'address').value = button.dataset.connectAddress;
        button.form.querySelector('[name="step"][value="test"]').click();
    });
})();
