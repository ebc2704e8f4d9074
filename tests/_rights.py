"""Users with the rights that docs/security.md names, read from that page."""

import contextlib
import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/security.md"
NAME, PASSWORD = "cartpole", "correct-horse"  # the page's buffer, and a password that no text may show


def documented(user):
    """The words of the page's ACL line for a user, behind its name."""
    (line,) = re.findall(rf"^    redis-cli ACL SETUSER {user} (.+)$", PAGE.read_text(), re.MULTILINE)
    return shlex.split(line)


def rights(user="trainer", name=NAME):
    """The rights of that line: commands, keys and channels, for the buffer `name` ("*": any)."""
    words = [word.replace(f"{{{NAME}}}", f"{{{name}}}") for word in documented(user)]
    return [word for word in words if word[0] in "+~&"]


@contextlib.contextmanager
def user(client, granted, name="trainer"):
    """A user with a password and these rights, for a while."""
    set_user(client, granted, name)
    yield name
    client.execute_command("ACL", "DELUSER", name)


def set_user(client, granted, name="trainer"):
    """Gives a user these rights and no others."""
    client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *granted)


def url_of(server, name="trainer", password=PASSWORD):
    """The server's address with a login."""
    return server.url.replace("unix://", f"unix://{name}:{password}@")
