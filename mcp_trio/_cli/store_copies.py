"""`mcp-trio copy`: recordings between a folder and a store."""

from pathlib import Path

import click


@click.command(
    short_help="Copy recordings to or from an S3-compatible store or a cloud bucket.",
    epilog="""\b
FROM and TO are a folder and the URL of a store: s3://bucket/prefix, gs://..., az://...,
file:///... Credentials are in the environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION, and AWS_ENDPOINT_URL for a server that is not of AWS.
This needs: pip install 'mcp_trio[upload]'

\b
From a folder, complete recordings directly in it are copied, and compressed on the way, unless
they are encrypted. Files that were copied are not copied again.

\b
Exit status: 0 success; 1 a file could not be copied to the store, or another process copies from
the folder now; 2 wrong usage, or the store or the folder cannot be used.

\b
Examples:
  mcp-trio copy s3://bucket/shop recordings/ --name 'shop-20261128*'
  mcp-trio copy recordings/ s3://bucket/shop
""",
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--name",
    "pattern",
    metavar="PATTERN",
    help="Copy those recordings from a store whose names match, as in a shell.",
)
@click.pass_context
def copy_command(context: click.Context, /, source: str, target: str, pattern: str | None) -> None:
    """Copy recordings FROM a store TO a folder, or from a folder to a store."""
    from mcp_trio._catalogue.uploads import FolderUpload, download
    from mcp_trio._recorder.policy import check_upload_url

    urls = [each for each in (source, target) if "://" in each]
    if len(urls) != 1:
        raise click.UsageError(
            "one of FROM and TO is a folder, the other the URL of a store, such as s3://bucket"
        )
    try:
        check_upload_url(urls[0])
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if source in urls:
        copied, present = download(source, Path(target), pattern or "*")
        click.echo(f"{copied} files copied, {present} were there")
        return
    if pattern is not None:
        raise click.UsageError("--name chooses recordings of a store: FROM is a folder")
    if not Path(source).is_dir():
        raise click.UsageError(f"{source} is no folder")
    sizes: list[int] = []
    upload = FolderUpload(
        Path(source), target, compress=True, with_running=False, on_uploaded=sizes.append
    )
    try:
        problems = upload.run()
    except OSError as error:
        raise click.UsageError(f"cannot copy from {source}: {error.strerror}") from error
    if problems is None:
        problems = [f"nothing is copied: another process copies from {source} now; try again later"]
    for problem in problems:
        click.echo(problem, err=True)
    click.echo(f"{len(sizes)} files copied")
    context.exit(1 if problems else 0)
