'use strict';
/* Route of a model: a target is dragged by its handle into another priority, or between two of them. The server changes
   the form, as it does for the buttons. Changed fields update the form, too. */
(() => {
    let dragged = null;
    const form = () => document.querySelector('[data-route-form]');
    const update = (part) => form().querySelector(`[data-route-${part}]`).click();

    document.addEventListener('dragstart', (event) => {
        if (!(event.target instanceof Element) || !event.target.matches('[data-route-handle]')) return;
        dragged = event.target.closest('[data-route-target]');
        event.dataTransfer.effectAllowed = 'move';
        event.dataTransfer.setData('text/plain', dragged.dataset.routeTarget);
        event.dataTransfer.setDragImage(dragged, 16, 16);
        form().classList.add('is-dragging');
    });
    const place = (event) => dragged && event.target instanceof Element && event.target.closest('[data-route-drop]');
    const clear = () => document.querySelectorAll('.is-over').forEach((element) => element.classList.remove('is-over'));
    document.addEventListener('dragover', (event) => {
        const over = place(event);
        clear();
        if (!over) return;
        event.preventDefault();
        over.classList.add('is-over');
    });
    document.addEventListener('drop', (event) => {
        const over = place(event);
        if (!over) return;
        event.preventDefault();
        const [where, priority] = over.dataset.routeDrop.split(':');
        form().querySelector('[data-route-move]').value = `${where}:${dragged.dataset.routeTarget}:${priority}`;
        update('update');
    });
    document.addEventListener('dragend', () => {
        if (!dragged) return;
        dragged = null;
        clear();
        form()?.classList.remove('is-dragging');
    });
    document.addEventListener('change', (event) => {
        const field = event.target instanceof Element && event.target.closest('.c-route-fields label');
        // Only another priority changes the groups. Replacing the form would discard what is being typed in the next field.
        if (field) update(field.matches('.c-route-priority') ? 'update' : 'preview');
    });
})();
