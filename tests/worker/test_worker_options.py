from __future__ import annotations

import pytest

from aegaeon_worker.__main__ import main


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--device", "gpu", "expected auto, cpu or cuda:<index>, not 'gpu'"),
        ("--device", "cuda", "expected auto, cpu or cuda:<index>, not 'cuda'"),
        ("--device", "cuda:-1", "expected auto, cpu or cuda:<index>, not 'cuda:-1'"),
        ("--role", "idle", "invalid choice: 'idle'"),
        ("--memory-utilization", "0", "expected a share above 0 and at most 1, not 0"),
        ("--memory-utilization", "1.5", "expected a share above 0 and at most 1, not 1.5"),
        ("--memory-utilization", "nan", "expected a share above 0 and at most 1, not nan"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--scheduler", "unix:s", "--node-id", "n", f"{option}={value}"])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
