"""The ``tokenswarm`` command: options in, exit code out. Whatever is heavy is imported by the command that needs it."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TextIO

import typer

from cluster.errors import ClusterError, RunError

if TYPE_CHECKING:
    from cluster.settings import ReplicaSettings, SweepSettings

app = typer.Typer(
    name="tokenswarm",
    help="How much load does an LLM service carry before throughput stops growing, and how sure are we?",
    epilog="Exit codes: 0 done, 1 the answer is bad or the run failed, 2 wrong usage or input, 130 interrupted.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)

DEMO_CONCURRENCY = "1,2,4,8,12,16,32,64"
DEMO_WARMUP_S = 1.5
#: Short enough that a level of some seconds has requests enough on two cores.
DEMO_PROMPT_TOKENS, DEMO_MAX_TOKENS = "short=16,medium=48,long=128", "short=24,medium=32,long=48"

Out = Annotated[Path, typer.Option(help="Directory that holds the runs.")]
RunId = Annotated[str, typer.Option(help="Name of the run below --out; must be new.  [default: date and time]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same prompts.  [default: one of its own each run]")
]
EngineSeed = Annotated[int, typer.Option(help="Seed of requests that bring none.")]
Model = Annotated[str, typer.Option(help="'demo', a Hugging Face folder, or a hub id.")]
Replicas = Annotated[int, typer.Option(help="Engine replicas behind the endpoint.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Most sequences that one step runs.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(help="Most tokens that one step computes.")]
BlockSize = Annotated[int, typer.Option(help="Tokens in a block of the KV cache.")]
NumKvBlocks = Annotated[int | None, typer.Option(help="Blocks in the KV cache.  [default: by --max-num-seqs]")]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of a sequence.  [default: the model's]")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of a replica.  [default: all cores but one, shared]")]
RayAddress = Annotated[str | None, typer.Option(help="A Ray cluster that runs already.  [default: one of its own]")]
Protocol = Annotated[
    Literal["openai-chat", "openai-completions", "anthropic-messages"], typer.Option(help="What the service speaks.")
]
Client = Annotated[
    Literal["own", "openai-sdk"], typer.Option(help="openai-sdk: times as an application sees them through it.")
]
TrustEnv = Annotated[bool, typer.Option("--trust-env", help="Take proxies from the environment.")]
GpusPerReplica = Annotated[float, typer.Option(help="GPUs that Ray gives to each replica.")]


@app.command()
def demo(out: Out = Path("runs"), run_id: RunId = "", seed: Seed = None) -> int:
    """All of it on this machine: engine, load, knee, report.

    A small engine on Ray, two load workers, eight levels; needs no options, no key and no network. The last line on
    stdout is the report's path.
    """
    from cluster.settings import ReplicaSettings, SweepSettings, engine_config

    settings = SweepSettings(
        concurrency=DEMO_CONCURRENCY,
        warmup_s=DEMO_WARMUP_S,
        prompt_tokens=DEMO_PROMPT_TOKENS,
        max_tokens=DEMO_MAX_TOKENS,
        seed=_seed(seed),
        replicas=ReplicaSettings(engine_config()),
    )
    return _sweep_and_analyze(settings, out, run_id, as_json=False)


@app.command()
def serve(
    model: Model = "demo",
    replicas: Replicas = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    max_num_seqs: MaxNumSeqs = 64,
    max_num_batched_tokens: MaxNumBatchedTokens = 512,
    block_size: BlockSize = 16,
    num_kv_blocks: NumKvBlocks = None,
    max_model_len: MaxModelLen = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: Threads = None,
    gpus_per_replica: GpusPerReplica = 0,
    seed: EngineSeed = 0,
) -> int:
    """Serve the OpenAI API from engine replicas, until Ctrl-C.

    Prints 'ready URL' once it answers.
    """
    from cluster.settings import require_free_port

    settings = _replicas(
        replicas, gpus_per_replica, model=model, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens, block_size=block_size, num_kv_blocks=num_kv_blocks,
        max_model_len=max_model_len, dtype=dtype, device=device, threads=threads, seed=seed,
    )  # fmt: skip
    require_free_port(host, port)
    _say(f"starting {replicas} replica(s) of {model}")
    from cluster.serve import run_serve

    return run_serve(settings, host, port, partial(_answer, stream=sys.stdout))


@app.command()
def probe(
    target: Annotated[str, typer.Option(help="URL of a service.")],
    model: Annotated[str, typer.Option(help="Model name.  [default: the first the service lists]")] = "",
    timeout: Annotated[float, typer.Option(help="Seconds until the request is given up.")] = 60.0,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "Say hello.",
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 16,
    protocol: Protocol = "openai-chat",
    trust_env: TrustEnv = False,
    as_json: AsJson = False,
) -> int:
    """Send one request and tell its whole story.

    Exit code 0 for a whole answer, else 1. A key comes from TAOTOKEN_API_KEY or OPENAI_API_KEY.
    """
    import subprocess

    options = ["--model", model, "--timeout", str(timeout), "--prompt", prompt, "--max-tokens", str(max_tokens)]
    options += ["--protocol", protocol, *(["--trust-env"] if trust_env else []), *(["--json"] if as_json else [])]
    command = [sys.executable, "-m", "workers.probe", target, *options]
    return subprocess.run(command, check=False).returncode  # gevent patches a process of its own


@app.command()
def calibrate(
    streams: Annotated[str, typer.Option(help="Numbers of streams.  [default: 1 to 3000, until one is off]")] = "",
    duration: Annotated[float, typer.Option(help="Seconds measured at each.")] = 5.0,
    ttft: Annotated[float, typer.Option(help="Seconds to the first token of the timing server.")] = 0.05,
    itl: Annotated[float, typer.Option(help="Seconds from token to token.")] = 0.02,
    tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 64,
    client: Client = "own",
    as_json: AsJson = False,
) -> int:
    """Measure this machine's own error as a load generator.

    One load process against a server whose timing is known. Prints the errors of TTFT and TPOT at rising loads, and the
    load up to which results may be trusted; it is stored, and every later report cites it (not that of openai-sdk).
    """
    from cluster.calibrate import DEFAULT_STREAMS, CalibrateSettings, result_of, store
    from cluster.calibrate import calibrate as run
    from cluster.calibration_table import HEADER, conclusion, line
    from cluster.plan import parse_concurrency

    numbers = parse_concurrency(streams, "streams") if streams else DEFAULT_STREAMS
    settings = CalibrateSettings(numbers, ttft, itl, tokens, duration, client)
    tell = partial(_answer, stream=sys.stderr if as_json else sys.stdout)
    tell(HEADER)
    points = run(settings, lambda point: tell(line(point)))
    result = result_of(settings, points)
    tell(conclusion(result))
    if client == "own":
        tell(f"stored in {store(result)}")
    if as_json:
        _answer_json(result)
    return 0 if result["trusted"] else 1


@app.command()
def sweep(
    concurrency: Annotated[str, typer.Option(help="Closed loop: numbers in flight, such as 1,2,4,8.")] = "",
    rate: Annotated[str, typer.Option(help="Open loop: requests a second, such as 0.5,1,2,4.")] = "",
    process: Annotated[str, typer.Option(help="How they arrive: poisson, constant or gamma:VARIATION.")] = "poisson",
    max_in_flight: Annotated[int, typer.Option(help="Open loop: arrivals beyond are not sent, and are rows.")] = 256,
    target: Annotated[str, typer.Option(help="'engine' starts one; else the URL of a service.")] = "engine",
    model: Annotated[str, typer.Option(help="Model name.  [default: demo, or the first the service lists]")] = "",
    workers: Annotated[int, typer.Option(help="Load workers, each a Locust process on a Ray node.")] = 2,
    warmup: Annotated[float, typer.Option(help="Seconds of load before the measured window of a level.")] = 2.0,
    duration: Annotated[float, typer.Option(help="Seconds of the measured window of a level.")] = 8.0,
    grace: Annotated[float, typer.Option(help="Seconds that answers in flight get when a level ends.")] = 30.0,
    mix: Annotated[str, typer.Option(help="Share of each prompt class.")] = "short=0.6,medium=0.3,long=0.1",
    prompt_tokens: Annotated[str, typer.Option(help="Tokens in.  [default: short=32,medium=128,long=512]")] = "",
    max_tokens: Annotated[str, typer.Option(help="Tokens out.  [default: short=32,medium=48,long=64]")] = "",
    language: Annotated[str, typer.Option(help="Language of the prompts: en, zh or both.")] = "both",
    protocol: Protocol = "openai-chat",
    client: Client = "own",
    tokenizer: Annotated[str, typer.Option(help="tokenizer.json, folder or hub name, where usage is not told.")] = "",
    request_timeout: Annotated[float, typer.Option(help="Seconds until a request is given up.")] = 120.0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask for answers of full length.")] = False,
    continuous_usage: Annotated[
        bool, typer.Option("--continuous-usage", help="Ask for the tokens of each chunk (vLLM, SGLang).")
    ] = False,
    trust_env: TrustEnv = False,
    obey_retry_after: Annotated[
        bool, typer.Option("--obey-retry-after", help="Wait as a 429 or 503 asks and try again, a row each.")
    ] = False,
    seed: Seed = None,
    out: Out = Path("runs"),
    run_id: RunId = "",
    as_json: AsJson = False,
    collect_rows: Annotated[
        bool, typer.Option("--collect-rows", help="Workers write to their own disks; rows come over Ray.")
    ] = False,
    ray_address: RayAddress = None,
    replicas: Replicas = 1,
    max_num_seqs: MaxNumSeqs = 64,
    max_num_batched_tokens: MaxNumBatchedTokens = 512,
    block_size: BlockSize = 16,
    num_kv_blocks: NumKvBlocks = None,
    max_model_len: MaxModelLen = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: Threads = None,
    gpus_per_replica: GpusPerReplica = 0,
) -> int:
    """Run load levels against a target; knee and report.

    A key for the target comes from TAOTOKEN_API_KEY or OPENAI_API_KEY. Ctrl-C ends the level and keeps what was
    measured.
    """
    from cluster.settings import ENGINE_TARGET, SweepSettings

    engine = _replicas(
        replicas, gpus_per_replica, model=(model or "demo") if target == ENGINE_TARGET else "demo",
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, block_size=block_size,
        num_kv_blocks=num_kv_blocks, max_model_len=max_model_len, dtype=dtype, device=device, threads=threads,
    )  # fmt: skip
    settings = SweepSettings(
        concurrency=concurrency, rate=rate, process=process, max_in_flight=max_in_flight,
        target=target, model=model, workers=workers, warmup_s=warmup, duration_s=duration,
        grace_s=grace, mix=mix, prompt_tokens=prompt_tokens, max_tokens=max_tokens, language=language, seed=_seed(seed),
        collect_rows=collect_rows, ray_address=ray_address, protocol=protocol, client=client, tokenizer=tokenizer,
        request_timeout_s=request_timeout, ignore_eos=ignore_eos, continuous_usage=continuous_usage,
        trust_env=trust_env, obey_retry_after=obey_retry_after, replicas=engine,
    )  # fmt: skip
    return _sweep_and_analyze(settings, out, run_id, as_json)


@app.command()
def analyze(run: Annotated[Path, typer.Argument(help="A run directory.")], as_json: AsJson = False) -> int:
    """Redo a run's summary.json, report.html and knee.png.

    From the Parquet alone."""
    return _analyze(run, as_json)


@app.command()
def knee(
    curve: Annotated[Path, typer.Argument(help="A CSV file with one row a load level.")],
    x: Annotated[str, typer.Option("--x", help="Column with the load.")],
    y: Annotated[str, typer.Option("--y", help="Column with the throughput.")],
    load: Annotated[
        Literal["closed", "open"], typer.Option(help="closed: --x counts users; open: --x is an offered rate.")
    ] = "closed",
    as_json: AsJson = False,
) -> int:
    """Find the knee of any throughput curve."""
    from analysis.curve_csv import knee_from_csv

    result = knee_from_csv(curve, x, y, load).as_json()
    if as_json:
        _answer_json(result)
    else:
        _answer(_knee_sentence(result))
        for warning in result["warnings"]:
            _say(f"note: {warning}")
    return 0


def main() -> NoReturn:
    """The entry point: every error a person can mend is one line on stderr."""
    sys.exit(_run(app))


def _run(command: Callable[..., Any]) -> int:
    from analysis.errors import InputError
    from workers.errors import SettingsError

    try:
        return int(command(prog_name="tokenswarm", standalone_mode=False) or 0)
    except ClusterError as error:
        return _fail(str(error), error.exit_code)
    except (SettingsError, InputError) as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except Exception as error:
        explain = getattr(error, "format_message", None)  # what typer raises for wrong usage has no public base class
        if explain is None:
            raise
        return _fail(f"{explain().rstrip('.')}; see tokenswarm --help", 2) if explain() else 2


def _replicas(replicas: int, gpus_per_replica: float, **options: Any) -> ReplicaSettings:
    from cluster.settings import ReplicaSettings, engine_config

    return ReplicaSettings(engine_config(replicas=replicas, **options), replicas, gpus_per_replica)


def _seed(asked: int | None) -> int:
    """Two runs must not send the same prompts by accident: the second would be answered from a prefix cache."""
    return secrets.randbelow(2**31) if asked is None else asked


def _sweep_and_analyze(settings: SweepSettings, out: Path, run_id: str, as_json: bool) -> int:
    from cluster.run_dir import check_new, default_run_id

    run_id = run_id or default_run_id()
    check_new(out, run_id)
    from cluster.sweep import run_sweep

    try:
        result = run_sweep(settings, out, run_id)
    except ClusterError as error:
        if error.exit_code == 1 and (out / run_id).exists():
            _say(f"'tokenswarm analyze {out / run_id}' shows what was measured")
        raise
    code = _analyze(result.path, as_json)
    if not result.num_ok and not result.is_interrupted:
        raise RunError(f"no request to {settings.target} succeeded; the outcomes and errors are in {result.path}")
    return 130 if result.is_interrupted else code


def _analyze(run: Path, as_json: bool) -> int:
    from analysis.report import analyze as analyze_run

    summary = analyze_run(run)
    if as_json:
        _answer_json(summary.as_json())
    else:
        _answer(summary.sentence)
        _answer(str(run / "report.html"))
    return 0


def _knee_sentence(result: dict[str, Any]) -> str:
    at = result["knee"]
    if at is None:
        return f"{result['verdict']}: no knee"
    return f"{result['verdict']}: knee at {at['x']:.3g} (95 % between {at['low']:.3g} and {at['high']:.3g})"


def _answer(line: str, stream: TextIO | None = None) -> None:
    stream = stream or sys.stdout
    stream.write(line + "\n")
    stream.flush()


def _answer_json(document: Any) -> None:
    import orjson

    _answer(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _fail(message: str, code: int) -> int:
    _say(f"error: {message}" if code != 130 else message)
    return code
