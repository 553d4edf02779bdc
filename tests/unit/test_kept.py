"""The budget of augmented sets: the oldest make room, and what is gone counts no more."""

from app.augmentation.set_cache import SetCache


class Block:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.held = True

    def release(self) -> None:
        self.held = False


def test_those_used_longest_ago_are_released() -> None:
    kept, blocks = SetCache(budget=100), [Block(40) for _ in range(3)]
    for block in (blocks[0], blocks[1], blocks[0], blocks[2]):
        kept.use(block)
    assert [block.held for block in blocks] == [True, False, True]


def test_one_that_is_too_large_alone_is_kept_while_it_is_used() -> None:
    kept, small, large = SetCache(budget=100), Block(10), Block(400)
    kept.use(small)
    kept.use(large)
    assert (small.held, large.held) == (False, True)


def test_what_is_gone_takes_no_room() -> None:
    kept, first = SetCache(budget=100), Block(60)
    kept.use(first)
    kept.use(Block(40))  # gone at once
    last = Block(40)
    kept.use(last)
    assert first.held and last.held
