"""What every competitor of a benchmark is asked for, and what came back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aegaeon.utils import get_tokenizer

#: Lengths of the prompts in tokens: about 64, unequal so that a padded batch has to pad.
PROMPT_LENGTHS = (64, 59, 62, 60, 64, 61, 63, 59)

_TEXTS = (
    "The lighthouse keeper wrote in his journal every evening, even when nothing had happened. "
    "He noted the wind, the height of the waves, and the names of the ships that passed. One "
    "autumn, after a storm had kept the whole coast awake for three nights, he wrote down a single "
    "sentence, closed the book, and walked down to the harbour to see what the sea had left there.",
    "A compiler turns a program that people can read into instructions that a machine can run. "
    "It first splits the text into words, then finds the structure of each sentence, then checks "
    "that the sentences make sense, and at last chooses the instructions. Every one of these steps "
    "can fail, and a good compiler says where and why it failed, and what the author may do.",
    "To bake bread you need flour, water, salt, and time. Mix the flour with the water and leave "
    "the dough alone for an hour. Add the salt, fold it a few times, and leave it again until it "
    "has doubled. Shape it, let it rest in a cool place over night, and bake it in the morning in "
    "a very hot oven. The most common mistakes are too little water and not enough patience.",
    "The city council met on Tuesday to discuss the new bridge across the river. Supporters said "
    "that it would shorten the way to school for four hundred children. Opponents asked who would "
    "pay for its upkeep, and whether the old ferry could not be repaired instead. After five hours "
    "the council voted to ask the engineers for a second plan, with a smaller bridge for bicycles.",
    "Octopuses have three hearts and blue blood. Two of the hearts pump blood through the gills, "
    "and the third one sends it around the body. When an octopus swims, that third heart stops, "
    "which is why most of them prefer to crawl. They taste with their arms, change their colour "
    "within a second, and can learn to open a jar by watching another octopus do so once.",
    "When the first railway reached the valley, the old clocks became a problem. Every village had "
    "kept its own time by the sun, and nobody minded the difference. But a train that leaves at "
    "noon must know which noon is meant. So the company hung a large clock at each station, set it "
    "by telegraph every morning, and within a year the whole valley lived by the time of the city.",
    "In a distributed system, a message may be lost, delayed, or delivered twice. The receiver "
    "cannot tell a slow sender from a dead one, and the sender cannot tell whether its message "
    "arrived. Engineers therefore give every request a number, repeat it until it is answered, and "
    "make sure that doing it twice does no harm. What remains difficult is to agree on an order.",
    "The museum's smallest room holds its oldest map. It shows the coast as sailors described it, "
    "with every harbour drawn too large and every mountain drawn where it was last seen. Visitors "
    "often laugh at the sea monsters in the corners. The guide then asks them to find the one "
    "harbour that is missing, and to guess why a careful map maker would have left it out.",
)


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids, and how many new tokens each must get, end-of-sequence ignored."""

    prompts: list[list[int]]
    new_tokens: int


@dataclass(frozen=True)
class Run:
    """One timed call: wall clock from the first prompt handed over to the last token received."""

    seconds: float
    tokens: list[list[int]]

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all prompts per second."""
        return sum(map(len, self.tokens)) / self.seconds


def load_workload(model_path: Path, new_tokens: int) -> Workload:
    """The benchmark's prompts in the model's own tokens."""
    tokenizer = get_tokenizer(model_path)
    prompts = []
    for text, length in zip(_TEXTS, PROMPT_LENGTHS, strict=True):
        token_ids = tokenizer.encode(text)
        if len(token_ids) < length:
            raise ValueError(f"{length} tokens wanted, {len(token_ids)} in: {text}")
        prompts.append(token_ids[:length])
    return Workload(prompts, new_tokens)


def many_prompts(model_path: Path, count: int, length: int, new_tokens: int) -> Workload:
    """As many as are wanted, no two alike: every further one of a text begins a token later."""
    few = load_workload(model_path, new_tokens).prompts
    starts = [divmod(number, len(few)) for number in range(count)]
    prompts = [few[text][start : start + length] for start, text in starts]
    if len(prompts[-1]) < length:
        raise ValueError(f"{count} prompts of {length} tokens wanted; there are too few tokens")
    return Workload(prompts, new_tokens)
