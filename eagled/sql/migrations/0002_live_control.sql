-- Answers that go on over several requests, shares and limits that an operator sets, and what an
-- operator's change of samples replaced.

ALTER TABLE sample ADD COLUMN extended INTEGER NOT NULL DEFAULT 0 CHECK (extended >= 0);

-- The ids of an answer that has no end yet: kept while its sample waits to be continued.
CREATE TABLE partial (
    id INTEGER PRIMARY KEY,
    n INTEGER NOT NULL CHECK (n > 0),
    crc INTEGER NOT NULL,
    z BLOB NOT NULL
) STRICT;

CREATE TRIGGER sample_partial AFTER UPDATE OF state ON sample
WHEN OLD.extended > 0 AND NEW.state NOT IN (0, 1, 2)
BEGIN
    DELETE FROM partial WHERE id = NEW.id;
END;

ALTER TABLE lane ADD COLUMN live_share REAL CHECK (live_share > 0);
ALTER TABLE dataset ADD COLUMN live_limit INTEGER CHECK (live_limit > 0);
ALTER TABLE dataset ADD COLUMN live_share INTEGER CHECK (live_share BETWEEN 1 AND 100);

-- What an operator's retry, rejection or move replaced, by the event that tells of it.
CREATE TABLE changed (
    seq INTEGER NOT NULL,
    sample_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    lane_id INTEGER,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    checked INTEGER NOT NULL,
    reason TEXT,
    detail TEXT,
    PRIMARY KEY (seq, sample_id)
) STRICT, WITHOUT ROWID;

-- An operator's rejection of an answer is taken back.
INSERT INTO transition (old, new) VALUES (8, 3);
