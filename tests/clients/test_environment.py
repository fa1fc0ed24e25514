from clients.local_update import code_version


def test_code_version_is_a_digest():
    assert len(code_version()) == 16 and code_version() == code_version()
