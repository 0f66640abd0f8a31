"""The version."""


def git_tag():
    return "v1.10.1"
