"""Where things lie in a state directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StatePaths:
    """The fixed names below one state directory; nothing else decides where a file goes."""

    root: Path

    @property
    def lock(self) -> Path:
        """The file whose flock says which daemon owns the directory."""
        return self.root / "daemon.lock"

    @property
    def database(self) -> Path:
        """The SQLite database; its -wal and -shm lie beside it."""
        return self.root / "q.db"

    @property
    def stamp(self) -> Path:
        """The stamp that notices a database that went back in time."""
        return self.root / "q.stamp"

    @property
    def socket(self) -> Path:
        """The control socket, unless configured or given by systemd."""
        return self.root / "control.sock"

    @property
    def datasets(self) -> Path:
        """One folder a prepared dataset."""
        return self.root / "datasets"

    @property
    def corpora(self) -> Path:
        """Frozen corpus versions: v001, v002, …."""
        return self.root / "corpora"

    @property
    def shards(self) -> Path:
        """Hidden-state shards under their final names, and `*.tmp` while being written."""
        return self.root / "shards"

    @property
    def spool(self) -> Path:
        """States captured by a server, until they are in a shard; unless configured."""
        return self.root / "spool"

    @property
    def vocab(self) -> Path:
        """Draft vocabularies, one folder a corpus version and size."""
        return self.root / "vocab"

    @property
    def drafts(self) -> Path:
        """Training runs and the drafts they make, one folder each."""
        return self.root / "drafts"

    @property
    def benchmarks(self) -> Path:
        """What `eagled bench` measured, one folder a benchmark."""
        return self.root / "benchmarks"

    @property
    def plans(self) -> Path:
        """`train_plan_vN.md`, newest last."""
        return self.root / "plans"

    @property
    def disk_choice(self) -> Path:
        """How states are stored, where `eagled plan disk --choose` said so."""
        return self.plans / "disk_choice.json"

    @property
    def discover(self) -> Path:
        """What `eagled discover` found last, and its cache."""
        return self.root / "discover"

    @property
    def data_choice(self) -> Path:
        """Which mix `eagled discover --choose` wrote into the configuration, and why."""
        return self.plans / "data_choice.json"

    @property
    def ballast(self) -> Path:
        """A file that is given up when the disk is full all the same."""
        return self.root / "ballast"

    @property
    def ring(self) -> Path:
        """Consumers of the ring of shards, and what each still holds."""
        return self.root / "ring.json"

    @property
    def quarantine(self) -> Path:
        """Files that were set aside, never deleted by eagled."""
        return self.root / "quarantine"

    @property
    def backups(self) -> Path:
        """Copies of the database made by `eagled db backup` and before migrations."""
        return self.root / "backups"

    @property
    def snapshot(self) -> Path:
        """The last status, written for readers without a daemon."""
        return self.root / "status.json"

    def draft_run(self, run: str) -> Path:
        """Return the folder of a training run: `run` itself if it is one, else below drafts/."""
        return Path(run) if Path(run).is_dir() else self.drafts / run

    @property
    def history(self) -> Path:
        """The course of the run, a line every half minute."""
        return self.root / "history.jsonl"

    @property
    def logs(self) -> Path:
        """What the workers print when the daemon starts them."""
        return self.root / "logs"
