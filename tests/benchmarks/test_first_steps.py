"""benchmarks/timing/first_steps.py: every step of the page has commands, and they find the folders of those before."""


def test_each_step_of_the_page_has_commands_without_placeholders(timing, tmp_path, monkeypatch):
    script, called = timing("first_steps"), []

    def run_command(*arguments, folder):
        assert folder == tmp_path
        called.append(arguments)
        return timing("commands").CommandCost(1.0, 0, 0)

    monkeypatch.setattr(script, "OUT", tmp_path)
    monkeypatch.setattr(script, "run_command", run_command)
    script.write_pictures()
    for folder in ("outputs/runs/2026-01-01_first", "outputs/runs/2026-01-02_second", "outputs/sweeps/2026-01-01_a"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "outputs/runs/.runs.sqlite").touch()
    steps = {name: dict(script.timed(text)) for name, text in script.STEP.findall(script.PAGE.read_text())}
    assert [name.split(".")[0] for name in steps] == ["1", "2", "3", "4", "5", "6"]
    assert all(steps.values())
    arguments = [argument for command in called for argument in command]
    assert not [argument for argument in arguments if "RUN" in argument or "NAME" in argument or "DIR" in argument]
    assert {"run=outputs/runs/2026-01-01_first", "outputs/sweeps/2026-01-01_a", "input=pictures"} <= set(arguments)
