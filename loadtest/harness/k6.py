"""Runs k6 with a plan, and reads its results."""

import json, os, subprocess
from pathlib import Path
from rig import ROOT, Failed

SCRIPTS = Path(ROOT) / "loadtest/k6"
INTERRUPTED = 105  # k6's exit code after SIGINT
THRESHOLDS = 99  # k6's exit code when a threshold did not hold


def find():
    found = subprocess.run([os.path.join(ROOT, "scripts/tools/k6")], stdout=subprocess.PIPE, text=True)
    if found.returncode:
        raise Failed("there is no k6")
    return found.stdout.strip()


class K6:
    """One run of one script. Everything it writes is in `folder`."""

    def __init__(self, binary, script, plan, folder):
        self.folder, self.ledger, self.summary = folder, folder / "ledger", folder / "summary.json"
        self.output = folder / "k6.txt"
        written = folder / "plan.json"
        written.write_text(json.dumps(plan | {"summary": str(self.summary)}, indent=1))
        env = os.environ | {
            "LOADTEST_PLAN": str(written),
            "K6_WEB_DASHBOARD": "true",
            "K6_WEB_DASHBOARD_PORT": "-1",  # the report only, no page during the run
            "K6_WEB_DASHBOARD_PERIOD": "1s" if plan["seconds"] < 600 else "10s",
            "K6_WEB_DASHBOARD_EXPORT": str(folder / "report.html"),
        }
        command = [binary, "run", "--no-usage-report", "--quiet", "--no-color", "--include-system-env-vars",
                   "--address", "",  # no REST API, whose port is fixed
                   "--console-output", self.ledger, "--log-format", "raw", SCRIPTS / f"{script}.js"]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)

    def wait(self, accepted=(0, THRESHOLDS)):
        """The exit code. Raises Failed with k6's last lines if k6 could not do the run."""
        code = self.process.wait()
        if code not in accepted or not self.summary.exists():
            last = self.output.read_text(errors="replace").splitlines()[-8:]
            raise Failed(f"k6 ended with exit code {code}:\n" + "\n".join(f"    {line}" for line in last))
        return code

    def end(self):
        """Ends k6 if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def results(self):
        return json.loads(self.summary.read_text())["metrics"]
