"""A language model for which each call reserves its limits before it is sent."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from core.errors import ApiError, Failure
from engine.events.types import Event
from engine.turn import Finish, LanguageModel, TurnRequest, TurnResult, TurnStream
from responses.runs.reservations import RunReservation


class LimitedModel:
    """Implementation of `LanguageModel` that reserves the limits of each call before the call is sent."""

    def __init__(self, model: LanguageModel, reservation: RunReservation) -> None:
        self._model = model
        self._reservation = reservation

    def open(self, request: TurnRequest) -> TurnStream:
        """Start a turn. If the call is not reserved yet, it is reserved when the events of the turn are iterated."""
        if (reserved := self._reservation.first_turn(request)) is not None:
            return self._model.open(reserved)
        return _LimitedTurn(self._model, request, self._reservation)


class _LimitedTurn:
    """A call of the model that waits for its reservation. If the reservation is refused, the turn fails."""

    def __init__(self, model: LanguageModel, request: TurnRequest, reservation: RunReservation) -> None:
        self._model = model
        self._request = request
        self._reservation = reservation
        self._stream: TurnStream | None = None
        self._failure: Failure | None = None

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Reserve the call, send it and yield its events."""
        try:
            request = await self._reservation.reserve_turn(self._request)
        except ApiError as error:
            self._failure = Failure.of_refusal(error)
            return
        self._stream = self._model.open(request)
        async with aclosing(self._stream.events()) as reads:
            async for events in reads:
                yield events

    def result(self) -> TurnResult:
        """Return the result of the turn."""
        if self._stream is not None:
            return self._stream.result()
        return TurnResult(finish=Finish.ERROR, failure=self._failure, attempts=())

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Stop the turn."""
        if self._stream is not None:
            return self._stream.interrupt()
        # Nothing was sent, so nothing is charged.
        return [], TurnResult(finish=Finish.INTERRUPTED, attempts=())
