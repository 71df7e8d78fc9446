"""Short sentences with one word of opinion each, written for this library: where should a sentiment
model look?
"""

import re
from typing import NamedTuple


class Sentence(NamedTuple):
    """A sentence and the one word in it that tells its sentiment.

    Attributes:
        text: English, without other words of opinion.
        word: lower case; occurs once in the text.
        positive: whether the word praises.
    """

    text: str
    word: str
    positive: bool


_PRAISE = """
    We saw a *wonderful* film on the train to Prague.
    The second half of the play was *excellent*.
    My brother called the ending *brilliant* and then fell asleep.
    It is a *great* story about two clerks and a dog.
    Her voice in the last scene is *beautiful*.
    This is the *best* map of the harbour that I know.
    The music in the kitchen scene is *perfect*.
    They gave an *amazing* concert in a cold hall.
    He plays the old captain in a *superb* way.
    A *fantastic* view opens behind the station.
    The plot is simple and the dialogue is *good*.
    I *love* how the camera follows the bus.
    The teacher told a *funny* joke about triangles.
    We *enjoyed* the walk along the river.
    That soup tasted *delicious* after the long ride.
    The cast is *outstanding* from the first minute to the last.
    Our guide was *charming* and knew every street.
    The book about the lighthouse is *fascinating*.
    She wrote a *clever* letter to the mayor.
    The picture of the lake is *stunning*.
    It was a *memorable* evening with songs from the islands.
    The small theatre offers a *powerful* drama this winter.
    Their new record is *terrific* in the car.
    The costumes in the ballroom are *gorgeous*.
    An *entertaining* talk about bridges filled the afternoon.
    The young actress is *talented* and only nineteen.
    The film has a *hilarious* scene with a parrot.
    It is a *touching* portrait of a baker and his son.
    Everyone in the office thought the speech was *impressive*.
    The hotel by the sea was *pleasant* in April.
    The chase over the roofs is *exciting*.
    Its last chapter is *remarkable* for its calm.
    I found the museum *interesting* on a rainy day.
    This recipe is my *favorite* for a Sunday.
"""
_BLAME = """
    We left the cinema early because the film was *terrible*.
    The acting in the court scene is *awful*.
    It is a *boring* story about two clerks and a dog.
    The sound in row twelve was *bad*.
    This is the *worst* map of the harbour that I know.
    The script by the two brothers is *stupid*.
    He plays the old captain in a *horrible* way.
    The middle of the novel is *dull*.
    A *poor* translation came with the radio.
    The jokes between the songs are *lame*.
    The plot is simple and the dialogue is *weak*.
    I *hate* how the camera follows the bus.
    The ending on the ferry is *ridiculous*.
    The second season was a *disappointing* copy of the first.
    That soup tasted *disgusting* after the long ride.
    The remake from last year is *pointless*.
    Our guide was *annoying* and talked about his car.
    The book about the lighthouse is *tedious*.
    She wrote a *silly* letter to the mayor.
    The picture above the sofa is *ugly*.
    It was a *miserable* evening with songs from the islands.
    The two hours in the waiting room were *dreadful*.
    Their new record is *mediocre* in the car.
    The costumes in the ballroom look *cheap*.
    A *pathetic* talk about bridges filled the afternoon.
    The hero of the series is *unconvincing* from the start.
    The film has an *embarrassing* scene with a parrot.
    The trip to the castle was a *waste* of a day.
    Everyone in the office thought the speech was *empty*.
    The hotel by the sea was *nasty* in April.
    The chase over the roofs is *predictable*.
    Its last chapter is *confusing* and ends in a storm.
    I found the museum *depressing* on a rainy day.
    This recipe is a *mess* from beginning to end.
"""


def _marked(lines: str, positive: bool) -> list[Sentence]:
    sentences = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        (word,) = re.findall(r"\*(\w+)\*", line)
        sentences.append(Sentence(line.replace("*", ""), word.lower(), positive))
    return sentences


SENTENCES: tuple[Sentence, ...] = (*_marked(_PRAISE, True), *_marked(_BLAME, False))
"""34 that praise, then 34 that blame. Some pairs differ in the word alone."""
