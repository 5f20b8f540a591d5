from rollart_hpc.errors import raised_text, text_of


def test_the_text_of_an_error_can_always_be_sent() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert text_of(ValueError("half of a pair: \ud83d")) == "half of a pair: \\ud83d"
    assert text_of(Silent()) == "(its text cannot be made: RuntimeError)"
    assert raised_text(ValueError("\ud83d")).encode() == b"ValueError: \\ud83d"
