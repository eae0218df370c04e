"""A prompt of 200 KB, about 50,000 tokens, such as a coding agent sends with the files that it has read."""

from functools import cache
from random import Random

SIZE = 200_000
_TEXT = """
the of and to in is that it was for on are with as at be this have from or by one not but all were when we there can
an your which their if do will each about how up out them then many some so these would other into has more two like
see time could no make than first been its who now people my made over did down only way find use water long little
very after words called just where most know get through back much before go good new write our used me man too any
day same right look think also around another came come work three word must because does part even place well such
here take why things help put years different away again off went old number great tell men say small every found
still between name should home big give air line set own under read last never us left end along while might next
sound below saw something thought both few those always show large often together asked house world going want school
important until form food keep children feet land side without boy once animal life enough took sometimes four head
above kind began almost live page got earth need far hand high year mother light country father let night picture
being study second server request answer queue table column index value error result function module package version
process thread memory
"""
_WORDS = _TEXT.split()


@cache
def large_prompt() -> str:
    """Return sentences of random words, the same ones in each process."""
    random, sentences, size = Random(50_000), list[str](), 0
    while size < SIZE:
        sentence = " ".join(random.choices(_WORDS, k=random.randint(5, 20))).capitalize() + "."
        sentences.append(sentence)
        size += len(sentence) + 1
    return " ".join(sentences)[:SIZE]
