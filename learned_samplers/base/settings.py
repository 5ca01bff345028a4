"""Settings: a hyperparameter is declared once, with its default, its check and what it means.

    class SGHMC(Sampler):
        momentum_decay: float = setting(default=0.1, check=partial(validation.fraction, open_left=True), doc="a, ...")

Constructor and signature, checks of a parameter group (new, joined later, changed by a scheduler, loaded from a state),
``help()``, command lines, weight cards and the reference pages read the declaration. Type checkers read the annotation.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from functools import partial
from typing import Any, ClassVar, dataclass_transform

from learned_samplers.base import validation

Check = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Setting:
    """One declared hyperparameter.

    Args:
        name: the keyword.
        default: its default value; `dataclasses.MISSING` where it must be given.
        check: called with the name and a value; raises ValueError or TypeError.
        check_new: a stricter check of what a user gives, where a scheduler may later go further (lr to 0).
        doc: what it means, with its symbol, range and unit.
        optional: whether None is a value.
        of_sampler: whether it belongs to the whole sampler; else each parameter group has its own.
        shared: whether all parameter groups must have the same value.
        structural: whether it chooses the update or its state, so that a loaded state must have the same value.
        in_card: whether weights are trained with it; if not, it is the choice of a run (of learned samplers).
        positional: whether it may be given by position.
    """

    default: Any
    check: Check
    check_new: Check | None = None
    doc: str = ""
    optional: bool = False
    of_sampler: bool = False
    shared: bool = False
    structural: bool = False
    in_card: bool = True
    positional: bool = False
    name: str = ""

    def validate(self, value: Any, *, new: bool = False) -> None:
        """Raise ValueError or TypeError, naming the setting, unless it may have this value."""
        if value is None and self.optional:
            return
        self.check(self.name, value)
        if new and self.check_new is not None:
            self.check_new(self.name, value)

    @property
    def required(self) -> bool:
        """True if it has no default."""
        return self.default is MISSING

    @property
    def choices(self) -> tuple[Any, ...]:
        """The words or values that it is one of; () where it is a number or something else."""
        return tuple(getattr(self.check, "keywords", {}).get("choices", ()))


def setting(
    *,
    default: Any = MISSING,
    check: Check | None = None,
    kw_only: bool = True,
    doc: str = "",
    check_new: Check | None = None,
    optional: bool = False,
    of_sampler: bool = False,
    shared: bool = False,
    structural: bool = False,
    in_card: bool = True,
) -> Any:
    """A declared hyperparameter, as the value of an annotated class attribute; see `Setting`."""
    declared = Setting(
        default,
        check or (lambda name, value: None),
        check_new,
        doc,
        optional,
        of_sampler,
        shared,
        structural,
        in_card,
        positional=not kw_only,
    )
    return field(default=default, kw_only=kw_only, metadata={"setting": declared})


def choice(*choices: Any, default: Any, kw_only: bool = True, **options: Any) -> Any:
    """A `setting` that is one of some words or values."""
    check = partial(validation.one_of, choices=choices)
    return setting(default=default, check=check, kw_only=kw_only, optional=default is None, **options)


def learning_rate(*, doc: str, kw_only: bool, default: Any = MISSING) -> Any:
    """The `setting` ``lr``: a scheduler may take it to 0, where none begins. Type checkers read ``kw_only``."""
    check, check_new = validation.non_negative, validation.positive
    return setting(default=default, check=check, check_new=check_new, kw_only=kw_only, doc=doc)


def data_count(*, doc: str, kw_only: bool, default: Any = MISSING) -> Any:
    """The `setting` ``num_data``, the same in all groups. Type checkers read ``kw_only``."""
    return setting(
        default=default,
        check=lambda name, value: validation.number_of_data(value),
        kw_only=kw_only,
        shared=True,
        doc=doc,
    )


def settings_of(cls: type) -> dict[str, Setting]:
    """The declarations of a dataclass of settings, or of a class of samplers, by name."""
    if issubclass(cls, Configurable):
        return dict(cls.declared)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    return {field.name: dataclasses.replace(field.metadata["setting"], name=field.name) for field in fields}


def keyword_of(settings: type, name: str, *, default: None = None) -> Any:
    """A setting of a dataclass of settings as a keyword of the sampler, by default None: as the card or the class says.

    Args:
        settings: the dataclass.
        name: of its field.
        default: None, for type checkers to see that it need not be given.
    """
    declared = settings_of(settings)[name]
    return setting(default=None, check=declared.check, doc=declared.doc, optional=True, of_sampler=True)


@dataclass_transform(kw_only_default=True, field_specifiers=(setting, choice, learning_rate, data_count, keyword_of))
class Configurable:
    """A class whose keywords are the `setting` attributes of itself and of its bases.

    A subclass gets `declared`, a signature, and the sections "Args" and, where it has none, "Raises" in its docstring.
    The attributes themselves go: their values live in parameter groups, or in the instance.
    """

    #: The section "Raises" of a docstring that has none.
    raises: ClassVar[str] = ""

    #: Every setting by name, in the order of the signature.
    declared: ClassVar[Mapping[str, Setting]] = {}
    #: Settings of a base class that this one does not take.
    not_taken: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        fields = {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)}
        for name in fields:
            delattr(cls, name)
        cls._declared_here = {
            name: dataclasses.replace(value.metadata["setting"], name=name) for name, value in fields.items()
        }
        cls.declared = _collected(cls)
        cls.__signature__ = _signature(cls)  # type: ignore[attr-defined]
        if cls.__doc__:
            cls.__doc__ = with_arguments(cls.__doc__, cls.declared, cls.raises)

    _declared_here: ClassVar[dict[str, Setting]] = {}

    @classmethod
    def named(cls, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a constructor by name, with defaults for what was not given.

        Raises:
            TypeError: there is no such argument, too many are given by position, or one is missing.
        """
        by_position = [name for name, one in cls.declared.items() if one.positional]
        if len(positional) > len(by_position):
            raise TypeError(
                f"{cls.__name__} takes {', '.join(['params', *by_position])} by position and all else by keyword, got "
                f"{len(positional) + 1} positional arguments"
            )
        values = dict(zip(by_position, positional))
        for name, value in keywords.items():
            if name in values:
                raise TypeError(f"{cls.__name__} got {name} by position and by keyword")
            values[name] = value
        missing = [name for name, declared in cls.declared.items() if name not in values and declared.required]
        if missing:
            raise TypeError(f"{cls.__name__} needs {' and '.join(missing)}, got nothing for it")
        return {name: values.get(name, declared.default) for name, declared in cls.declared.items()}

    def check_settings(self, values: Mapping[str, Any], *, of_sampler: bool = False, new: bool = False) -> None:
        """Check the settings of a parameter group, or those of the whole sampler, one by one.

        Raises:
            ValueError, TypeError: a value is out of range or of a wrong type; the message names the setting.
        """
        for name, declared in self.declared.items():
            if declared.of_sampler is of_sampler:
                declared.validate(values[name], new=new)


def _collected(cls: type[Configurable]) -> dict[str, Setting]:
    """Settings of a class and its bases: those by position, those of the class itself, those that it inherits.

    A setting that a subclass declares anew keeps the place of the first declaration.
    """
    latest: dict[str, Setting] = {}
    order: list[list[str]] = []
    for base in reversed(cls.__mro__):
        declared: dict[str, Setting] = vars(base).get("_declared_here", {})
        order.insert(0, [name for name in declared if name not in latest])
        latest |= declared
    names = [name for group in order for name in group if name not in ("params", *cls.not_taken)]
    return {name: latest[name] for name in sorted(names, key=lambda name: not latest[name].positional)}


def _signature(cls: type[Configurable]) -> inspect.Signature:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [inspect.Parameter("params", kinds[1])]
    for name, declared in cls.declared.items():
        default = inspect.Parameter.empty if declared.required else declared.default
        parameters.append(inspect.Parameter(name, kinds[declared.positional], default=default))
    return inspect.Signature(parameters)


#: Text of the first argument of every sampler.
PARAMS = "parameters, named parameters or parameter groups, as for any torch optimizer."
_SECTIONS = ("Attributes:", "Raises:", "Returns:")


def with_arguments(docstring: str, declared: Mapping[str, Setting], raises: str = "") -> str:
    """A class's docstring with the section "Args", made of its declarations, before "Attributes" or "Raises"."""
    text = inspect.cleandoc(docstring)
    if "\nArgs:\n" in text:
        return text
    if raises and "\nRaises:\n" not in text:
        text += f"\n\nRaises:\n    {raises}\n"
    lines = [f"params: {PARAMS}"]
    for name, setting in declared.items():
        default = "" if setting.required or setting.default is None else f" Default {setting.default!r}."
        lines.append(f"{name}: {setting.doc}{default}")
    wrapped = [textwrap.fill(x, 120, initial_indent="    ", subsequent_indent="        ") for x in lines]
    section = "\n".join(["Args:", *wrapped])
    places = [place for name in _SECTIONS if (place := text.find(f"\n{name}\n")) >= 0]
    place = min(places, default=len(text))
    return f"{text[:place].rstrip()}\n\n{section}\n\n{text[place:].lstrip()}".rstrip() + "\n"
