"""The few facts that the demo knows. A text that contains all words of a key gets its sentence."""

import re

WORD = re.compile(r"\w+")

FACTS = {
    ("capital", "france"): "The capital of France is Paris.",
    ("capital", "germany"): "The capital of Germany is Berlin.",
    ("capital", "italy"): "The capital of Italy is Rome.",
    ("capital", "spain"): "The capital of Spain is Madrid.",
    ("capital", "japan"): "The capital of Japan is Tokyo.",
    ("capital", "kenya"): "The capital of Kenya is Nairobi.",
    ("capital", "brazil"): "The capital of Brazil is Brasília.",
    ("largest", "planet"): "The largest planet of the solar system is Jupiter.",
    ("highest", "mountain"): "The highest mountain above the sea is Mount Everest.",
    ("wrote", "hamlet"): "Hamlet was written by William Shakespeare.",
    ("speed", "light"): "Light travels at 299,792,458 metres per second in a vacuum.",
    ("water", "boil"): "At sea level water boils at 100 degrees Celsius.",
    ("days", "week"): "A week has seven days.",
}


def find(text: str) -> str | None:
    """Return the fact that a text asks for, or None."""
    words = set(WORD.findall(text.lower()))
    return next((fact for key, fact in FACTS.items() if words.issuperset(key)), None)
