"""Print a script that completes verbs, flags, their choices and override keys in your shell.

The script lists what this version of expertp accepts; print it again after an update.
"""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from expertp.spec import BaseHPs, ModelSpec, ParallelSpec, Spec, TrainSpec

EXAMPLES = """\
  expertp completion bash    # in ~/.bashrc: eval "$(expertp completion bash)"; zsh: the same in ~/.zshrc
  expertp completion fish    # > ~/.config/fish/completions/expertp.fish
"""
SHELLS = ("bash", "zsh", "fish")
SECTIONS: dict[str, type[Spec]] = {
    **{"base": ModelSpec, "model": ModelSpec, "hps": BaseHPs},
    **{"train": TrainSpec, "parallel": ParallelSpec},
}
# Sections that overrides of a verb may change; other verbs take those of several kinds of files.
PLANNING, STUDYING = ("model", "hps"), ("base", "hps", "train")
TRAINING = ("base", "model", "hps", "train", "parallel")
OVERRIDDEN = {
    **{"plan": PLANNING, "planner": PLANNING, "capacity": ("model", "train", "parallel"), "train": TRAINING},
    **{"sweep": STUDYING, "tune": STUDYING, "coordcheck": STUDYING},
}
# Names in --help of positional arguments that are files or directories; other such names end with .yaml.
PATHS = ("FILE", "DIR", "SOURCE")


@dataclass(frozen=True)
class Flag:
    """A flag of a verb and the number of its values: one of `choices`, or whatever a file may be called."""

    name: str
    summary: str
    values: int
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Verb:
    """A verb and what may follow it: flags, words, keys of overrides, and files."""

    name: str
    summary: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]
    keys: tuple[str, ...]
    takes_files: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="your shell")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](describe_verbs()), end="")
    return 0


def describe_verbs() -> list[Verb]:
    """Return all verbs, as their parsers declare them."""
    from expertp.cli.main import VERBS, build_parser

    return [_verb(name, summary, build_parser(name)) for name, summary in VERBS.items()]


def _verb(name: str, summary: str, parser: argparse.ArgumentParser) -> Verb:
    named = [action for action in parser._actions if action.option_strings]
    places = [action for action in parser._actions if not action.option_strings]
    return Verb(
        name=name,
        summary=summary,
        flags=tuple(
            Flag(max(action.option_strings, key=len), _summary(action), _values(action), _choices(action))
            for action in named
        ),
        words=tuple(word for action in places for word in _choices(action)),
        keys=tuple(
            f"{section}.{key}=" for section in OVERRIDDEN.get(name, ()) for key in SECTIONS[section].model_fields
        ),
        takes_files=any(str(action.metavar).endswith((*PATHS, ".yaml")) for action in places),
    )


def _summary(action: argparse.Action) -> str:
    return (action.help or "") % vars(action)


def _values(action: argparse.Action) -> int:
    return action.nargs if isinstance(action.nargs, int) else 1


def _choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or ()))


def bash(verbs: Sequence[Verb]) -> str:
    """Return the script for bash, which itself completes files where the script offers nothing."""
    choices = [
        f"    '{verb.name} {flag.name}') words='{' '.join(flag.choices)}'; keys=''; files='' ;;\n"
        for verb in verbs
        for flag in verb.flags
        if flag.choices
    ]
    each = [
        f"      {verb.name}) flags='{' '.join(flag.name for flag in verb.flags)}'; words='{' '.join(verb.words)}'; "
        f"keys='{' '.join(verb.keys)}'; files={'yes' if verb.takes_files else ''} ;;\n"
        for verb in verbs
    ]
    return (
        "# expertp: completion for bash\n"
        "_expertp() {\n"
        "  local line=${COMP_LINE:0:COMP_POINT} verb=${COMP_WORDS[1]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
        "  local current='' flags='' words='' keys='' files='' file=''\n"
        "  COMPREPLY=()\n"
        "  [[ $line == *[[:space:]] ]] || current=${line##*[[:space:]]}\n"
        "  if (( COMP_CWORD == 1 )); then\n"
        f"    words='{' '.join(verb.name for verb in verbs)}'\n"
        "  else\n"
        "    case $verb in\n" + "".join(each) + "    esac\n"
        '    case "$verb $previous" in\n'
        + "".join(choices)
        + f"    {_patterns(verbs, 1)}) return 0 ;;\n    esac\n"
        + f'    case "$verb ${{COMP_WORDS[COMP_CWORD-2]}}" in {_patterns(verbs, 2)}) return 0 ;; esac\n'
        "  fi\n"
        "  if [[ $current == -* ]]; then\n"
        '    COMPREPLY=($(compgen -W "$flags" -- "$current"))\n'
        "  elif [[ $current != *=* ]]; then\n"
        '    COMPREPLY=($(compgen -W "$words $keys" -- "$current"))\n'
        "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null\n"
        "    if [[ -n $files && ${#COMPREPLY[@]} -gt 0 ]]; then\n"
        '      while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$current")\n'
        "    fi\n"
        "  fi\n"
        "  return 0\n"
        "}\n"
        "complete -o default -F _expertp expertp\n"
    )


def _patterns(verbs: Sequence[Verb], place: int) -> str:
    """Return the patterns of a verb and its flag after which, so many words later, a file may stand."""
    return "|".join(
        f"'{verb.name} {flag.name}'"
        for verb in verbs
        for flag in verb.flags
        if flag.values >= place and not flag.choices
    )


def zsh(verbs: Sequence[Verb]) -> str:
    """Return the script for zsh."""

    def described(pairs: Sequence[tuple[str, str]]) -> str:
        return " ".join(shlex.quote(f"{name}:{summary}") for name, summary in pairs)

    each = [
        f"    {verb.name}) flags=({described([(flag.name, flag.summary) for flag in verb.flags])})\n"
        f"      words_here=({' '.join(verb.words)}) keys=({' '.join(map(shlex.quote, verb.keys))}) ;;\n"
        for verb in verbs
    ]
    choices = [
        f"    '{verb.name} {flag.name}') compadd -- {' '.join(flag.choices)}; return ;;\n"
        for verb in verbs
        for flag in verb.flags
        if flag.choices
    ]
    return (
        "#compdef expertp\n"
        "# expertp: completion for zsh\n"
        "_expertp() {\n"
        "  local -a verbs flags words_here keys\n"
        f"  verbs=({described([(verb.name, verb.summary) for verb in verbs])})\n"
        "  if (( CURRENT == 2 )); then _describe verb verbs; return; fi\n"
        '  case "$words[2] $words[CURRENT-1]" in\n'
        + "".join(choices)
        + f"    {_patterns(verbs, 1)}) _files; return ;;\n  esac\n"
        + f'  case "$words[2] $words[CURRENT-2]" in {_patterns(verbs, 2)}) _files; return ;; esac\n'
        "  case $words[2] in\n" + "".join(each) + "  esac\n"
        "  if [[ $PREFIX == -* ]]; then _describe flag flags; return; fi\n"
        "  (( $#words_here )) && compadd -- $words_here\n"
        "  (( $#keys )) && compadd -S '' -- $keys\n"
        "  _files\n"
        "}\n"
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
        "compdef _expertp expertp\n"
    )


def fish(verbs: Sequence[Verb]) -> str:
    """Return the script for fish, which itself completes files beside what the script offers."""
    lines = [
        "# expertp: completion for fish",
        "function __expertp_verb_is",  # __fish_seen_subcommand_from takes any word of the line
        "    set -l words (commandline -opc)",
        '    test "$words[2]" = $argv[1]',
        "end",
        "complete -c expertp -n __fish_use_subcommand -f",
    ]
    for verb in verbs:
        lines.append(f"complete -c expertp -n __fish_use_subcommand -a {verb.name} -d {_fish_quoted(verb.summary)}")
        here = f"complete -c expertp -n '__expertp_verb_is {verb.name}'"
        for flag in verb.flags:
            value = f" -x -a '{' '.join(flag.choices)}'" if flag.choices else " -r" if flag.values else ""
            lines.append(f"{here} -l {flag.name.removeprefix('--')}{value} -d {_fish_quoted(flag.summary)}")
        lines += [f"{here} -a {_fish_quoted(word)}" for word in (*verb.words, *verb.keys)]
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    """Return a text in single quotes, in which fish knows two escapes.

    >>> print(_fish_quoted("the base's"))
    'the base\\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
