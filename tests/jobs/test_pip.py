"""What is made of the words of pip."""

from lib_lora.jobs.pip import reason_of


def test_reason_of_names_both_sides_of_a_conflict_and_the_network():
    said = [
        "Collecting torch==2.13.0",
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'",
        "ERROR: Cannot install torch==2.13.0 because these package versions have conflicting dependencies.",
        "The user requested torch==2.13.0",
        "The user requested (constraint) torch<=2.0",
    ]
    reason = reason_of(said)
    assert "(constraint) torch<=2.0" in reason
    assert "NewConnectionError" in reason
    assert "at: Collecting torch==2.13.0" in reason
