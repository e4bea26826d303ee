-- The core: live jobs, the archive, and what stands beside them.
--
-- Every name begins with tessera_, since the file may be the application's own database. Times are milliseconds.
-- States are the numbers of rows.py: 0 pending, 1 scheduled, 2 available, 3 blocked, 4 running, 5 waiting, 6 quarantined,
-- 7 completed, 8 dead, 9 cancelled. "rest" holds, as msgpack, the fields of a job that seldom say anything; NULL = none does.

-- pre

CREATE TABLE tessera_meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    installation BLOB NOT NULL,
    clock INTEGER NOT NULL DEFAULT 0,
    policy INTEGER NOT NULL DEFAULT 0,
    events INTEGER NOT NULL DEFAULT 0
);

-- The hot table: an ordinary rowid table, so that payloads stay out of the key's tree. The wide columns come last.
CREATE TABLE tessera_job (
    id BLOB NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    np INTEGER NOT NULL,
    pass INTEGER NOT NULL,
    due INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    holder TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    blocked_on TEXT NOT NULL,
    parent BLOB,
    expires_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    body BLOB NOT NULL,
    payload BLOB NOT NULL,
    rest BLOB
);
CREATE INDEX tessera_job_ready ON tessera_job (queue, np, pass, due, id) WHERE state = 2;
CREATE INDEX tessera_job_scheduled ON tessera_job (queue, due, id) WHERE state = 1;
CREATE INDEX tessera_job_lease ON tessera_job (lease_until) WHERE state = 4;
CREATE INDEX tessera_job_blocked ON tessera_job (blocked_on, state, np, pass, due, id) WHERE blocked_on > '';
CREATE INDEX tessera_job_still ON tessera_job (queue, state, id) WHERE state = 0 OR state = 5 OR state = 6;
CREATE INDEX tessera_job_expiry ON tessera_job (expires_at, id) WHERE expires_at > 0 AND state < 4;
CREATE INDEX tessera_job_cancel ON tessera_job (holder, id) WHERE cancel_requested = 1;
CREATE INDEX tessera_job_parent ON tessera_job (parent, id) WHERE parent IS NOT NULL;

CREATE TABLE tessera_done (
    id BLOB NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    np INTEGER NOT NULL,
    due INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    parent BLOB,
    created_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    gone_at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    last_fence INTEGER NOT NULL,
    last_end TEXT NOT NULL,
    ends BLOB,
    body BLOB NOT NULL,
    payload BLOB NOT NULL,
    result BLOB,
    rest BLOB
);
CREATE INDEX tessera_done_gone ON tessera_done (gone_at) WHERE gone_at >= 0;
CREATE INDEX tessera_done_odd ON tessera_done (queue, state, id) WHERE state > 7;
CREATE INDEX tessera_done_parent ON tessera_done (parent, id) WHERE parent IS NOT NULL;

-- Rows only for tagged jobs, live or archived.
CREATE TABLE tessera_job_tag (
    tag TEXT NOT NULL,
    job BLOB NOT NULL,
    PRIMARY KEY (tag, job)
) WITHOUT ROWID;

CREATE TABLE tessera_count (
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (queue, state)
) WITHOUT ROWID;

CREATE TABLE tessera_slot (
    key TEXT NOT NULL PRIMARY KEY,
    owner BLOB NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tessera_slot_expiry ON tessera_slot (expires_at) WHERE expires_at > 0;

CREATE TABLE tessera_counter (
    key TEXT NOT NULL PRIMARY KEY,
    used INTEGER NOT NULL,
    ceiling INTEGER NOT NULL,
    refill INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    unit INTEGER NOT NULL,
    level INTEGER NOT NULL,
    level_at INTEGER NOT NULL,
    closed_until INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    awake INTEGER NOT NULL,
    wake_at INTEGER NOT NULL,
    version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tessera_counter_wake ON tessera_counter (wake_at) WHERE wake_at > 0;
CREATE INDEX tessera_counter_blocked ON tessera_counter (version) WHERE blocked > 0;

CREATE TABLE tessera_floor (
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    pass INTEGER NOT NULL,
    PRIMARY KEY (queue, priority)
) WITHOUT ROWID;

CREATE TABLE tessera_pass (
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    pass INTEGER NOT NULL,
    PRIMARY KEY (queue, priority, tenant)
) WITHOUT ROWID;

CREATE TABLE tessera_edge (
    parent BLOB NOT NULL,
    child BLOB NOT NULL,
    "on" TEXT NOT NULL,
    otherwise TEXT NOT NULL,
    PRIMARY KEY (parent, child)
) WITHOUT ROWID;
CREATE INDEX tessera_edge_child ON tessera_edge (child, parent);

CREATE TABLE tessera_record (
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    value BLOB,
    written_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (space, key)
);
CREATE INDEX tessera_record_due ON tessera_record (due_at) WHERE due_at > 0;
CREATE INDEX tessera_record_expiry ON tessera_record (expires_at) WHERE expires_at > 0;

CREATE TABLE tessera_record_history (
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    value BLOB,
    written_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX tessera_record_history_key ON tessera_record_history (space, key, version);

CREATE TABLE tessera_event (
    pos INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    what TEXT NOT NULL,
    queue TEXT NOT NULL,
    job BLOB,
    number INTEGER NOT NULL,
    by TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX tessera_event_job ON tessera_event (job, pos) WHERE job IS NOT NULL;

-- Bytes lie in chunks that never move: publishing an upload rewrites only who refers to them.
CREATE TABLE tessera_chunk (
    id INTEGER PRIMARY KEY,
    data BLOB NOT NULL
);
CREATE TABLE tessera_staged (
    upload TEXT NOT NULL,
    number INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    size INTEGER NOT NULL,
    staged_at INTEGER NOT NULL,
    PRIMARY KEY (upload, number)
) WITHOUT ROWID;
CREATE TABLE tessera_blob (
    sha256 BLOB NOT NULL PRIMARY KEY,
    size INTEGER NOT NULL,
    published_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE tessera_blob_chunk (
    sha256 BLOB NOT NULL,
    number INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    PRIMARY KEY (sha256, number)
) WITHOUT ROWID;

-- post

-- down

DROP TABLE tessera_blob_chunk;
DROP TABLE tessera_blob;
DROP TABLE tessera_staged;
DROP TABLE tessera_chunk;
DROP TABLE tessera_event;
DROP TABLE tessera_record_history;
DROP TABLE tessera_record;
DROP TABLE tessera_edge;
DROP TABLE tessera_pass;
DROP TABLE tessera_floor;
DROP TABLE tessera_counter;
DROP TABLE tessera_slot;
DROP TABLE tessera_count;
DROP TABLE tessera_job_tag;
DROP TABLE tessera_done;
DROP TABLE tessera_job;
DROP TABLE tessera_meta;
