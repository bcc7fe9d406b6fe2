"""`python -m tests.fuzz --seconds 60 [target ...]`: fuzzes each target; what fails is kept in its corpus."""

from __future__ import annotations

import click

from tests.fuzz.runner import all_targets


@click.command()
@click.option("--seconds", default=60.0, help="How long each target is fuzzed.")
@click.argument("names", nargs=-1)
def main(seconds: float, names: tuple[str, ...]) -> None:
    """Fuzzes TARGETS, or all of them."""
    known = {target.name: target for target in all_targets()}
    if unknown := set(names) - set(known):
        raise click.BadParameter(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in names or known:
        click.echo(f"{name}: {known[name].run_for(seconds)} examples, no failure")


main()
