"""`/v1/batches`: what is valid (`requests`), creating and cancelling (`services`), reading (`selectors`), and what
workers do: take the input in (`intake`), claim what is to be done (`claims`), answer lines (`answering`), write the
output (`output`), all of it driven by `runner`."""
