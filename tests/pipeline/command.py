"""`talweg` with `talweg pipeline`, as a process: for tests that run the command."""

from talweg.cli import main, pipeline

if __name__ == "__main__":
    if all(group.name != "pipeline" for group in main.app.registered_groups):
        main.app.add_typer(pipeline.app, name="pipeline")
    main.main()
