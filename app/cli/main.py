"""The command `kc`: signatures only.

Each command imports what it needs when it runs, so that `kc --help` answers at once.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import CliError
from app.cli.measuring import Json, Quiet, measuring

app = typer.Typer(
    name="kc",
    help="Kernel contracts: how far training and serving may diverge, measured and enforced.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rendering help through rich doubles the time to the first line
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
register = typer.Typer(name="register", no_args_is_help=True, help="Tell the control plane what exists.")


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


Url = Annotated[str, typer.Option("--url", envvar="KC_URL", help="Where the control plane answers.")]
PromotionId = Annotated[
    str, typer.Argument(help="The promotion's id, or its beginning.", metavar="PROMOTION")
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; it is kept in the audit trail.")]
DEFAULT_URL = "http://127.0.0.1:8321"


@app.command()
def lint(
    files: Annotated[list[Path], typer.Argument(help="Contract files.", metavar="FILE...")],
    format: Annotated[Format, typer.Option(help="How findings are printed.")] = Format.TEXT,
    build: Annotated[
        list[str] | None, typer.Option(help="A registered build the contract names, `NAME=BUILD`.")
    ] = None,
) -> None:
    """Check contracts.

    Exit 0 clean or warnings only, 1 errors, 2 unreadable.
    """
    from app.cli.lint import run

    raise typer.Exit(run(files, format.value, build or []))


@app.command()
def schema() -> None:
    """Print the JSON Schema of contracts.

    Editors complete and check contracts with it.
    """
    from app.cli.contracts import schema as run

    raise typer.Exit(run())


@app.command()
def explain(
    file: Annotated[Path, typer.Argument(help="The contract, a YAML file.")], json: Json = False
) -> None:
    """Say what a contract promises.

    Each clause in a sentence, what follows from what, and the prompts each needs.
    """
    from app.cli.contracts import explain as run

    raise typer.Exit(run(file, as_json=json))


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(help="The old contract.")],
    new: Annotated[Path, typer.Argument(help="The new contract.")],
    json: Json = False,
) -> None:
    """Compare two versions of a contract.

    Exit 0 nothing loosened, 1 something loosened, removed or incomparable, 2 unreadable.
    """
    from app.cli.contracts import diff as run

    raise typer.Exit(run(old, new, as_json=json))


@app.command("test-contract")
def examine(
    file: Annotated[Path, typer.Argument(help="The contract, a YAML file.")],
    prompts: Annotated[
        int | None,
        typer.Option("--prompts", "-n", min=1, help="Draws the power is for; min_prompts without."),
    ] = None,
    zoo: Annotated[bool, typer.Option("--zoo", help="On faults of real engines, in a real model.")] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="For --zoo: weights and tokenizer.")] = None,
    train: Annotated[str | None, typer.Option(help="For --zoo: a torch build.")] = None,
    inference: Annotated[str | None, typer.Option(help="For --zoo: a torch-serving build.")] = None,
    suite: Annotated[Path | None, typer.Option(help="For --zoo: prompts.")] = None,
    faults: Annotated[str | None, typer.Option(help="For --zoo: F1,F8,...; all without.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try a contract on pairs known to be faulty.

    Exit 0 every clause can hold and can fail, 1 one cannot, 2 unreadable. With --zoo, exit 0 every fault
    that applies is caught and every control passes, 1 not so, 2 bad usage, 4 could not be measured.
    """
    from app.cli.contracts import examine as run
    from app.cli.zoo import run as run_zoo

    options = {
        "checkpoint": checkpoint,
        "train": train,
        "inference": inference,
        "suite": suite,
        "faults": faults,
    }
    if zoo:
        raise typer.Exit(run_zoo(file, prompts, options, as_json=json, quiet=quiet))
    raise typer.Exit(run(file, prompts, options, as_json=json))


@app.command()
def demo(
    short: Annotated[bool, typer.Option("--short", help="Fewer prompts, the same stages.")] = False,
    vllm: Annotated[bool, typer.Option("--vllm", help="vLLM serves; it needs its environment.")] = False,
) -> None:
    """Promote a real model, stop a faulty build."""
    from app.cli.demo import run

    raise typer.Exit(run(short=short, vllm=vllm))


@app.command()
def serve(
    host: Annotated[str, typer.Option(envvar="KC_HOST", help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="KC_PORT", help="Port to bind.")] = 8321,
    embedded_worker: Annotated[bool, typer.Option(help="Start one worker as a child process.")] = True,
) -> None:
    """Run the control plane.

    API, status page, scheduler and, unless told not to, one worker.
    """
    from app.cli.processes import serve as run

    run(host, port, embedded_worker=embedded_worker)


@app.command()
def worker() -> None:
    """Run a measurement worker."""
    from app.cli.processes import become

    become("workers.local")


@app.command()
def gateway(
    deployment: Annotated[str, typer.Option(help="The registered deployment to serve.")],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind.")] = 8322,
) -> None:
    """Run the data plane of a deployment.

    `/v1/completions`, routed as the deployment's routing table says.
    """
    from app.cli.processes import become

    become("app.gateway.main", "--deployment", deployment, "--host", host, "--port", str(port))


@app.command("kernel-server")
def kernel_server(
    build: Annotated[str, typer.Option(help="Kernel build: `engine:key=value,...` or a file.")],
    checkpoint: Annotated[Path, typer.Option(help="Directory with safetensors weights and tokenizer.")],
    port: Annotated[int, typer.Option(help="Port to bind.")],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
) -> None:
    """Serve one kernel build.

    OpenAI-compatible `/v1/completions` on loopback unless told otherwise.
    """
    from app.cli.processes import become

    become(
        "workers.serve",
        "--build", build, "--checkpoint", str(checkpoint), "--host", host, "--port", str(port),
    )  # fmt: skip


@app.command()
def promote(
    deployment: Annotated[str, typer.Argument(help="The registered deployment.")],
    contract: Annotated[str, typer.Option(help="`name@version` of a registered contract.")],
    checkpoint: Annotated[str, typer.Option(help="Name of a registered checkpoint.")],
    train: Annotated[str, typer.Option(help="Name of the registered training build.")],
    inference: Annotated[str, typer.Option(help="Name of the registered candidate build.")],
    suite: Annotated[str, typer.Option(help="Name of a registered suite.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it; exit 0 promoted, 1 stopped, 3 awaiting approval.")
    ] = False,
    json: Json = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Start the promotion of a kernel build."""
    from app.cli.promotions import promote as run

    raise typer.Exit(
        run(url, deployment, contract, checkpoint, train, inference, suite, wait=wait, as_json=json)
    )


@app.command()
def status(
    promotion: Annotated[str | None, typer.Argument(help="One promotion; all of them without.")] = None,
    json: Json = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List promotions, or show one."""
    from app.cli.promotions import status as run

    run(url, promotion, as_json=json)


@app.command()
def approve(promotion: PromotionId, url: Url = DEFAULT_URL) -> None:
    """Let the pending stage begin."""
    from app.cli.promotions import act

    act(url, promotion, "approve", "")


@app.command()
def freeze(promotion: PromotionId, reason: Reason, url: Url = DEFAULT_URL) -> None:
    """Stop a promotion where it stands.

    What serves keeps serving.
    """
    from app.cli.promotions import act

    act(url, promotion, "freeze", reason)


@app.command()
def resume(promotion: PromotionId, reason: Reason, url: Url = DEFAULT_URL) -> None:
    """Leave frozen: measure the stage afresh.

    Also leaves fallen back; either way under a new attempt.
    """
    from app.cli.promotions import act

    act(url, promotion, "resume", reason)


@app.command()
def abort(promotion: PromotionId, reason: Reason, url: Url = DEFAULT_URL) -> None:
    """End it; the known-good build serves."""
    from app.cli.promotions import act

    act(url, promotion, "abort", reason)


@app.command()
def retry(promotion: PromotionId, reason: Reason = "", url: Url = DEFAULT_URL) -> None:
    """Measure the present stage afresh.

    No evidence is carried over.
    """
    from app.cli.promotions import act

    act(url, promotion, "retry", reason)


@register.command("contract")
def register_contract(
    file: Annotated[Path, typer.Argument(help="The contract, a YAML file.")], url: Url = DEFAULT_URL
) -> None:
    """A contract; its name and version are in the file and never change once registered."""
    from app.cli.registry import contract

    contract(url, file)


@register.command("checkpoint")
def register_checkpoint(name: str, path: Path, url: Url = DEFAULT_URL) -> None:
    """A checkpoint: safetensors weights and tokenizer in a directory the server can read."""
    from app.cli.registry import checkpoint

    checkpoint(url, name, path)


@register.command("build")
def register_build(
    name: str,
    build: Annotated[str, typer.Argument(help="`engine:key=value,...` or a JSON file.")],
    url: Url = DEFAULT_URL,
) -> None:
    """A kernel build."""
    from app.cli.registry import build as run

    run(url, name, build)


@register.command("suite")
def register_suite(name: str, path: Path, url: Url = DEFAULT_URL) -> None:
    """An evaluation suite: prompts, one JSON object a line."""
    from app.cli.registry import suite

    suite(url, name, path)


@register.command("deployment")
def register_deployment(
    name: str,
    known_good: Annotated[str, typer.Option(help="The build that serves now.")],
    endpoint: Annotated[list[str], typer.Option(help="`build=url` of a kernel server; once a build.")],
    url: Url = DEFAULT_URL,
) -> None:
    """A deployment: which build serves, and where each build answers."""
    from app.cli.registry import deployment

    deployment(url, name, known_good, endpoint)


app.add_typer(measuring)
app.add_typer(register)


def main() -> None:
    """Run `kc`; an expected error is one line on stderr and never a traceback."""
    try:
        app()
    except CliError as error:
        print(f"kc: {error}", file=sys.stderr)
        sys.exit(error.code)


if __name__ == "__main__":
    main()
