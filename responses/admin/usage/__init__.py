"""How much is used: the page of charts, its questions and answers, and the links from numbers to what they count."""
