-- The first schema. State codes are literals so that partial indexes apply (types.STATE_CODE):
-- 0 queued, 1 generating, 2 retry_wait, 3 generated, 4 extracting, 5 extracted,
-- 6 waiting, 7 failed, 8 rejected, 9 cancelled.

CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    lineage BLOB NOT NULL CHECK (length(lineage) = 16),
    seq INTEGER NOT NULL CHECK (seq >= 0),
    epoch INTEGER NOT NULL CHECK (epoch >= 0),
    clean INTEGER NOT NULL CHECK (clean IN (0, 1))
) STRICT;
INSERT INTO meta (one, lineage, seq, epoch, clean) VALUES (1, randomblob(16), 0, 0, 1);

CREATE TABLE lane (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (length(name) > 0),
    ord INTEGER NOT NULL,
    context INTEGER NOT NULL CHECK (context >= 0),
    config_limit INTEGER NOT NULL CHECK (config_limit >= 0),
    live_limit INTEGER CHECK (live_limit >= 0),
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    configured INTEGER NOT NULL DEFAULT 1 CHECK (configured IN (0, 1))
) STRICT;

CREATE TABLE dataset (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (length(name) > 0),
    config_priority INTEGER NOT NULL,
    live_priority INTEGER,
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    mode TEXT NOT NULL CHECK (mode IN ('regenerate', 'native')),
    prep_key TEXT NOT NULL,
    n_rows INTEGER NOT NULL CHECK (n_rows >= 0),
    n_kept INTEGER NOT NULL CHECK (n_kept >= 0),
    n_rejected INTEGER NOT NULL CHECK (n_rejected >= 0),
    complete INTEGER NOT NULL DEFAULT 0 CHECK (complete IN (0, 1))
) STRICT;

CREATE TABLE conversation (
    id INTEGER PRIMARY KEY,
    uid BLOB NOT NULL UNIQUE CHECK (length(uid) = 16),
    dedup BLOB NOT NULL,
    dataset_id INTEGER NOT NULL REFERENCES dataset (id),
    source_id TEXT,
    z BLOB
) STRICT;
CREATE INDEX conversation_dedup ON conversation (dedup);

CREATE TABLE shard (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
    file_bytes INTEGER NOT NULL CHECK (file_bytes >= 0),
    n_samples INTEGER NOT NULL CHECK (n_samples >= 0),
    n_tokens INTEGER NOT NULL CHECK (n_tokens >= 0),
    manifest_hash TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    dropped TEXT
) STRICT;

CREATE TABLE sample (
    id INTEGER PRIMARY KEY,
    uid BLOB NOT NULL UNIQUE CHECK (length(uid) = 16),
    conversation_id INTEGER NOT NULL REFERENCES conversation (id),
    dataset_id INTEGER NOT NULL REFERENCES dataset (id),
    turn INTEGER NOT NULL CHECK (turn >= 0),
    lane_id INTEGER REFERENCES lane (id),
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 9),
    rank INTEGER NOT NULL DEFAULT 1 CHECK (rank IN (0, 1)),
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    epoch INTEGER,
    not_before_ms INTEGER,
    n_prompt INTEGER CHECK (n_prompt > 0),
    prompt_crc INTEGER,
    n_output INTEGER CHECK (n_output > 0),
    output_crc INTEGER,
    finish TEXT CHECK (finish IN ('stop', 'length', 'native')),
    server TEXT,
    elapsed_ms INTEGER,
    checked INTEGER NOT NULL DEFAULT 0 CHECK (checked IN (0, 1)),
    extract_attempt INTEGER NOT NULL DEFAULT 0 CHECK (extract_attempt >= 0),
    extract_epoch INTEGER,
    worker TEXT,
    shard_id INTEGER REFERENCES shard (id),
    shard_index INTEGER,
    reason TEXT,
    detail TEXT,
    updated_ms INTEGER NOT NULL,
    CHECK ((n_prompt IS NULL) = (prompt_crc IS NULL)),
    CHECK ((n_output IS NULL) = (output_crc IS NULL)),
    CHECK ((n_output IS NULL) = (finish IS NULL)),
    CHECK ((state = 1) = (epoch IS NOT NULL)),
    CHECK ((state = 2) = (not_before_ms IS NOT NULL)),
    CHECK ((state = 4) = (worker IS NOT NULL)),
    CHECK ((state = 4) = (extract_epoch IS NOT NULL)),
    CHECK ((state = 5) = (shard_id IS NOT NULL)),
    CHECK ((shard_id IS NULL) = (shard_index IS NULL)),
    CHECK ((state IN (7, 8, 9)) = (reason IS NOT NULL)),
    CHECK (state NOT IN (0, 1, 2) OR (lane_id IS NOT NULL AND n_prompt IS NOT NULL)),
    CHECK (state NOT IN (3, 4, 5) OR (n_prompt IS NOT NULL AND n_output IS NOT NULL)),
    CHECK (state NOT IN (0, 1, 2, 6) OR n_output IS NULL),
    CHECK (state <> 6 OR n_prompt IS NULL),
    CHECK (state NOT IN (4, 5) OR checked = 1)
) STRICT;
CREATE UNIQUE INDEX sample_turn ON sample (conversation_id, turn);
CREATE INDEX sample_claim ON sample (lane_id, dataset_id, rank, id) WHERE state = 0;
CREATE INDEX sample_generating ON sample (id) WHERE state = 1;
CREATE INDEX sample_retry ON sample (not_before_ms) WHERE state = 2;
CREATE INDEX sample_unchecked ON sample (id) WHERE state = 3 AND checked = 0;
CREATE INDEX sample_extract ON sample (id) WHERE state = 3 AND checked = 1;
CREATE INDEX sample_extracting ON sample (worker) WHERE state = 4;
CREATE INDEX sample_merge ON sample (dataset_id, id) WHERE state IN (3, 4, 5);
CREATE INDEX sample_given_up ON sample (dataset_id, state, reason, id) WHERE state IN (7, 8, 9);
CREATE INDEX sample_shard ON sample (shard_id) WHERE shard_id IS NOT NULL;

-- Token ids, zstd of little-endian u32; their CRCs are in sample. Plain rowid tables: measured.
CREATE TABLE prompt (id INTEGER PRIMARY KEY, z BLOB NOT NULL) STRICT;
CREATE TABLE answer (id INTEGER PRIMARY KEY, z BLOB NOT NULL) STRICT;

CREATE TABLE counter (
    lane_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    dataset_id INTEGER NOT NULL,
    n INTEGER NOT NULL CHECK (n >= 0),
    PRIMARY KEY (lane_id, state, dataset_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE transition (
    old INTEGER NOT NULL,
    new INTEGER NOT NULL,
    PRIMARY KEY (old, new)
) STRICT, WITHOUT ROWID;
INSERT INTO transition (old, new) VALUES
    (6, 0), (6, 8), (6, 9),                  -- waiting: rendered, refused, predecessor gone
    (0, 1), (0, 7), (0, 8),                  -- queued: claimed, found damaged, operator
    (1, 0), (1, 2), (1, 3), (1, 7), (1, 8),  -- generating
    (2, 0), (2, 8),                          -- retry_wait: due, operator
    (3, 4), (3, 8),                          -- generated: claimed, refused
    (4, 3), (4, 5), (4, 7),                  -- extracting: released, in a shard, bad states
    (5, 3), (5, 8),                          -- extracted: shard lost, operator
    -- operator's retry
    (7, 0), (7, 3), (8, 0), (8, 6), (9, 6);

CREATE TRIGGER sample_guard BEFORE UPDATE OF state ON sample
WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transition WHERE old = OLD.state AND new = NEW.state)
BEGIN
    SELECT RAISE(ABORT, 'illegal sample transition');
END;

CREATE TRIGGER sample_attempt BEFORE UPDATE OF attempt, extract_attempt ON sample
WHEN NEW.attempt < OLD.attempt OR NEW.extract_attempt < OLD.extract_attempt
BEGIN
    SELECT RAISE(ABORT, 'attempt never falls');
END;

CREATE TRIGGER sample_count_insert AFTER INSERT ON sample
BEGIN
    INSERT INTO counter (lane_id, state, dataset_id, n)
    VALUES (ifnull(NEW.lane_id, 0), NEW.state, NEW.dataset_id, 1)
    ON CONFLICT (lane_id, state, dataset_id) DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER sample_count_move AFTER UPDATE OF state, lane_id ON sample
WHEN OLD.state <> NEW.state OR OLD.lane_id IS NOT NEW.lane_id
BEGIN
    UPDATE counter SET n = n - 1
    WHERE lane_id = ifnull(OLD.lane_id, 0) AND state = OLD.state AND dataset_id = OLD.dataset_id;
    INSERT INTO counter (lane_id, state, dataset_id, n)
    VALUES (ifnull(NEW.lane_id, 0), NEW.state, NEW.dataset_id, 1)
    ON CONFLICT (lane_id, state, dataset_id) DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER sample_count_delete AFTER DELETE ON sample
BEGIN
    UPDATE counter SET n = n - 1
    WHERE lane_id = ifnull(OLD.lane_id, 0) AND state = OLD.state AND dataset_id = OLD.dataset_id;
END;

CREATE TABLE failure (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    sample_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX failure_sample ON failure (sample_id, id);

CREATE TABLE event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    uid INTEGER NOT NULL,
    undo TEXT
) STRICT;
CREATE INDEX event_undo ON event (seq) WHERE undo IS NOT NULL;

CREATE TABLE setting (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    set_by INTEGER NOT NULL,
    set_ms INTEGER NOT NULL
) STRICT;
