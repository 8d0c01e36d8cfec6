'use strict';
(() => {
// Everything that comes from outside is put in as text, never as markup.
const byId = id => document.getElementById(id);
const lostAfter = 5; // seconds without a status; one comes each second
const shown = 20; // entries of the journal at first
const kept = 500;
// The place of this page, without the user and password that its address may hold: a
// browser fetches nothing from such a one.
const here = location.origin + location.pathname.replace(/[^/]*$/, '');

let status = null; // as it came last
let at = 0, atWall = 0; // when that was, on this browser's two clocks, in ms
let failed = '', tries = 0, retryAt = 0, polled = false, refused = '';
let last = 0; // id of the last journal entry
let entries = []; // oldest first
let all = false;
let stop = null; // aborts the stream
let shownAt = 0; // when this tab was last shown again
let heard = ''; // what a screen reader was told

const now = () => performance.now();
// One of the clocks stands still while the machine sleeps, the other jumps when it is set.
const elapsed = () => status ? Math.max(now() - at, Date.now() - atWall, 0) / 1000 : 0;
const lost = () => status !== null && !polled && (failed !== '' || elapsed() > lostAfter);

function text(node, s) {
	if (node.textContent !== s) node.textContent = s;
}
function put(id, s) { text(byId(id), s); }
function show(id, on) { byId(id).hidden = !on; }
function el(tag, cls, ...inside) {
	const node = document.createElement(tag);
	if (cls) node.className = cls;
	node.append(...inside); // strings become text
	return node;
}

// duration prints whole seconds, in the two largest units.
function duration(s) {
	s = Math.max(0, Math.round(s)); // as the sentence does
	const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
	const i = units.findIndex(([n]) => s >= n);
	if (i < 0) return '0\u00a0s';
	const [n, unit] = units[i];
	const rest = units[i + 1] && Math.floor(s % n / units[i + 1][0]);
	return Math.floor(s / n) + '\u00a0' + unit + (rest ? '\u00a0' + rest + '\u00a0' + units[i + 1][1] : '');
}
const clock = ms => new Date(ms).toISOString().slice(11, 19);
const day = ms => new Date(ms).toISOString().slice(0, 10);
function moment(ms) { // the date only where it is not today's
	const today = day(Date.parse(status.at) + elapsed() * 1000);
	return (day(ms) === today ? '' : day(ms) + ' ') + clock(ms) + ' UTC';
}
const plural = (n, noun) => n + ' ' + noun + (n === 1 ? '' : 's');

const words = {ok: 'OK', info: 'Notice', warning: 'Warning', critical: 'Critical', none: 'Unknown'};
const shapes = { // a disc with a tick, a disc with an i, a triangle, an octagon, a disc with a question mark
	ok: 'M12 1a11 11 0 1 0 0 22 11 11 0 0 0 0-22zm-1.6 16.2L5.6 12.4l1.8-1.8 3 3 6.2-6.2 1.8 1.8z',
	info: 'M12 1a11 11 0 1 0 0 22 11 11 0 0 0 0-22zm1.4 16.6h-2.8v-7.4h2.8zm0-9.2h-2.8V5.8h2.8z',
	warning: 'M12 1.6 23.4 21.8H.6zm-1.3 6.6.3 6.6h2l.3-6.6zM12 19.4a1.4 1.4 0 1 0 0-2.8 1.4 1.4 0 0 0 0 2.8z',
	critical: 'M7.4 1h9.2L23 7.4v9.2L16.6 23H7.4L1 16.6V7.4zm.1 8.3L10.2 12l-2.7 2.7 1.8 1.8 2.7-2.7 2.7 2.7 1.8-1.8-2.7-2.7 2.7-2.7-1.8-1.8-2.7 2.7-2.7-2.7z',
	none: 'M12 1a11 11 0 1 0 0 22 11 11 0 0 0 0-22zm1.4 17.8h-2.8V16h2.8zm1.9-7.6c-.9.9-1.7 1.4-1.8 3h-2.8c0-2.9 2.9-3.2 2.9-5 0-.9-.7-1.5-1.6-1.5S10.3 8.400 10.300 9.400H7.500a4.500 4.500 0 1 1 7.800 1.800z',
};
const tints = {ok: '#1a7037', info: '#0a5cb8', warning: '#b26b00', critical: '#b3261e', none: '#57606a'};

// tone is how much a word of the contract matters.
function tone(word) {
	switch (word) {
	case 'ready': case 'attached': case 'active': case 'up': case 'stands_by': case 'held': case 'recovered': case 'complete': case 'done': return 'ok';
	case 'degraded': case 'draining': case 'drained': case 'unknown': case 'quarantined': case 'awaited': case 'off': case 'unconfirmed': case 'not_ready':
	case 'guard_tripped': case 'stale_view': case 'failing': case 'on_hold': case 'let_go': return 'warning';
	case 'detached': case 'down': case 'absent': case 'another': case 'failed': case 'guard_fired': case 'identity_conflict': case 'not_quiesced': case 'lost': case 'key_deleted': return 'critical';
	}
	return '';
}
const plain = word => word.replaceAll('_', ' ');

// What the journal says about a cause of now: its latest event of that sort, if that one
// still tells of the present state, or of something to do.
function explaining(cause, s) {
	const kind = {lease: 'attachment', attached: 'attachment', mode: 'mode', broker: 'broker', topics: 'topics', guard: 'guard', steer: 'steer', agent: 'agent'}[cause];
	const e = entries.findLast(e => e.kind === kind);
	const present = {attachment: s.attachment, mode: s.mode, broker: s.broker.up === 'up' ? '' : s.broker.held ? 'on_hold' : s.broker.up}[kind];
	return e && (present === undefined ? e.next : e.to === present || e.to === 'let_go' && present === 'down') ? e : null;
}

// causes lists why clients are kept away, or soon may be. Those that one event explains
// are told together.
function causes(s) {
	const said = s.broker.last_error && s.summary.includes(s.broker.last_error) ? ': ' + s.broker.last_error : '';
	const list = s.ready.causes.map(c => {
		if (said) c = c.replace(said, '');
		const i = c.indexOf(': ');
		return {name: i < 0 ? c : c.slice(0, i), what: i < 0 ? '' : c.slice(i + 2)};
	});
	const failing = s.lease.failure_streak > 0 ? plural(s.lease.failure_streak, s.lease.id ? 'renewal' : 'attempt') + ' failed in a row' + (s.lease.failing_seconds ? ', for ' + duration(s.lease.failing_seconds) : '') : '';
	const about = list.find(c => c.name === 'lease' || c.name === 'attached');
	if (failing && !about) list.push({name: 'lease', what: failing});
	else if (failing) about.what += '; ' + failing;
	const groups = new Map();
	for (const c of list) {
		const e = explaining(c.name, s), key = e ? e.id : 0;
		if (!groups.has(key)) groups.set(key, {e, lines: []});
		groups.get(key).lines.push(el('p', '', el('b', '', c.name), c.what ? ': ' + c.what : ''));
	}
	const items = [...groups.values()].sort((a, b) => (b.e !== null) - (a.e !== null)).map(({e, lines}) => {
		const li = el('li', '', ...lines);
		if (e && e.next) li.append(el('p', 'do', el('b', '', 'Do: '), e.next));
		if (e && e.why) li.append(el('p', 'quiet', e.why));
		return li;
	});
	show('why', items.length > 0);
	replace('causes', items);
}

// replace leaves what is the same alone, so that a selection survives.
function replace(id, nodes) {
	const old = byId(id), next = el('div', '', ...nodes);
	if (old.childNodes.length !== nodes.length || nodes.some((n, i) => !n.isEqualNode(old.childNodes[i]))) old.replaceChildren(...next.childNodes);
}

function row(name, value, cls, more) {
	return el('div', '', el('dt', '', name), el('dd', '', cls ? el('span', cls, value) : value, more ? ' ' + more : ''));
}

function facts(s) {
	const r = s.registration, l = s.lease, rows = [];
	const err = t => t && !s.summary.includes(t) ? '– ' + t : '';
	rows.push(row('Attachment', plain(s.attachment), tone(s.attachment)));
	rows.push(row('Mode', plain(s.mode || 'not decided yet'), s.left ? '' : tone(s.mode), s.left ? '– at its next start: it has left' : s.reason && '– ' + s.reason));
	if (s.pause) rows.push(row('Recovery', 'paused', 'warning', 'by ' + s.pause.owner + ', ' + duration(s.pause.remaining_seconds) + ' more: ' + s.pause.reason));
	rows.push(row('Broker', plain(s.broker.up), tone(s.broker.up), err(s.broker.last_error)));
	if (s.broker.held) rows.push(row('Held', plain(s.broker.held), 'warning'));
	if (s.broker.steering && s.broker.steering !== 'done') rows.push(row('Steering', s.broker.steering, tone(s.broker.steering)));
	if (s.stopped_by) rows.push(row('Stopped', 'by the ' + s.stopped_by.by, 'critical', moment(Date.parse(s.stopped_by.at)) + ': ' + s.stopped_by.why));
	const kind = r.adopted ? 'adopted' : 'own';
	rows.push(row('Registration', ...({
		held: ['present', 'ok', '– ' + kind + ', epoch ' + s.epoch],
		none: ['kept by the broker’s own cluster', '', ''],
		supposed: ['only supposed', '', '– nothing is written'],
		another: ['held by another sidecar', 'critical', ''],
		unconfirmed: ['present', 'warning', '– not confirmed to be ours'],
		absent: ['absent', 'critical', ''],
	}[r.state] || ['unknown', 'warning', '– it cannot be read in etcd, and may stand' + (s.epoch ? ', last seen with epoch ' + s.epoch : '')])));
	if (l.id) rows.push(row('Lease', l.id, '', '– TTL ' + duration(l.ttl_seconds)));
	if (l.failure_streak) rows.push(row(l.id ? 'Renewals' : 'Attempts', 'failing', 'warning', l.last_error && '– ' + l.last_error));
	if (!s.shadow) rows.push(row('Guard', plain(s.guard.state), tone(s.guard.state), {
		stands_by: s.guard.pid ? '– for process ' + s.guard.pid : '', idle: '– no process of the broker is guarded now',
		off: '– nothing stops the broker if this sidecar dies or hangs', absent: '– nothing stops the broker if this sidecar dies or hangs',
	}[s.guard.state]));
	rows.push(row('Boot', s.boot.kind === 'unknown' ? (s.mode ? 'before this sidecar' : 'not decided yet') : plain(s.boot.kind) + (s.boot.past ? ', last time' : ''), '', s.boot.reason && '– ' + s.boot.reason));
	rows.push(row('Sidecar', s.version, '', '– up ' + duration((Date.parse(s.at) - Date.parse(s.since)) / 1000)));
	rows.push(row('Incarnation', s.incarnation));
	if (s.fleet) {
		const odd = s.fleet.others.map(p => p.id + ' ' + (p.registered ? p.mode : 'not registered'));
		rows.push(row('Fleet', s.fleet.registered + ' registered, ' + s.fleet.active + ' active', '', odd.length ? '– ' + odd.join(', ') : ''));
	}
	replace('rows', rows);
}

function topics(s) {
	const t = s.topics, known = t.listed;
	const up = s.broker.up === 'up';
	put('served-n', known ? String(t.served) : '');
	put('served-t', known ? 'of ' + t.assigned + ' assigned ' + (up || !t.served ? (t.assigned === 1 ? 'is' : 'are') + ' served' : 'when the broker last answered') :
		(t.assigned ? t.assigned + ' assigned; what' : 'What') + ' is served is not known: the broker has not told yet.');
	byId('topics').classList.toggle('then', !up);
	show('share', known && t.assigned > 0);
	show('counts-topics', known);
	byId('share-served').style.width = t.assigned ? 100 * t.served / t.assigned + '%' : '0';
	byId('share-loading').style.width = t.assigned ? 100 * t.loading / t.assigned + '%' : '0';
	const count = (name, n, cls) => row(name, String(n), n > 0 ? cls : 'quiet');
	const rows = [count(s.mode === 'drained' ? 'withdrawn' : 'missing', t.missing, 'warning'), count('loading', t.loading, 'info'), count('orphan', t.orphan, 'critical'), count('quarantined', t.quarantined, 'warning')];
	if (t.held_elsewhere) rows.push(count('held elsewhere', t.held_elsewhere, 'info'));
	if (t.unreadable) rows.push(count('unreadable', t.unreadable, 'info'));
	if (t.misspelt) rows.push(count('misspelt field', t.misspelt, 'warning'));
	replace('counts-topics', rows);
	put('topics-note', !known || !up ? '' : s.shadow ? 'If anything were done (--shadow).' :
		t.missing + t.orphan + t.quarantined + (t.misspelt || 0) > 0 ? 'To see which: holdfast topics.' : '');
	show('topics-note', byId('topics-note').textContent !== '');
}

const size = n => {
	const i = n < 1024 ? 0 : Math.min(5, Math.floor(Math.log2(n) / 10));
	return (i ? (n / 1024 ** i).toFixed(1) : n) + '\u00a0' + ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][i];
};

// moves lists those that this broker has a part in, each phase with where the topic stands.
function moves(s) {
	const list = s.moves || [];
	const standing = e => e ? (e.empty ? ', empty' : ' at ' + e.last) : '';
	show('moves', list.length > 0);
	replace('moving', list.flatMap(m => {
		const why = m.stalled || m.error, whole = (m.sealed || m.planned || {}).bytes;
		const phase = {sealed: 'sealed' + standing(m.sealed), copied: 'target' + standing(m.copied), resumed: 'resumed' + standing(m.served)}[m.phase] || m.phase;
		const line = el('tr', '', el('td', '', m.topic, el('p', 'quiet', m.from + ' → ' + (m.to || 'whom their cluster chooses'))),
			el('td', '', el('span', why ? 'warning' : '', phase)),
			el('td', '', whole === undefined ? '' : (m.moved_bytes ? size(m.moved_bytes) + ' of ' : '') + size(whole)));
		const note = el('td', '', why || '');
		note.colSpan = 3;
		return why ? [line, el('tr', 'quiet', note)] : [line];
	}));
}

// countdown runs between the statuses, which correct it.
function countdown(s) {
	const l = s.lease, gone = lost() ? 0 : elapsed();
	const held = l.id !== '';
	show('counts', held && !lost());
	show('scale', held);
	if (!held) {
		put('lease-note', s.registration.state === 'none' ? 'None: the broker’s own cluster keeps its registration (--registration none), and nothing here has a deadline.' :
			'No lease is held, so nothing counts down.' + (s.ready.ok ? '' : ' The broker must serve nothing until it is registered.'));
		return;
	}
	const fence = l.fence_in_seconds - gone, dead = l.remaining_seconds - gone, ttl = l.ttl_seconds;
	const margin = l.remaining_seconds - l.fence_in_seconds;
	const count = (n, t, left, name) => {
		put(n, duration(Math.abs(left)));
		put(t, left > 0 ? 'to the ' + name : 'since the ' + name);
	};
	count('fence-n', 'fence-t', fence, 'fence point');
	count('dead-n', 'dead-t', dead, 'deadline');
	const share = x => 100 * Math.min(1, Math.max(0, x / ttl)) + '%';
	byId('spent').style.width = share(ttl - dead);
	byId('margin').style.width = share(margin);
	byId('mark').style.left = byId('mark-t').style.left = share(ttl - margin);
	const bar = byId('bar');
	bar.setAttribute('aria-valuemax', String(ttl));
	bar.setAttribute('aria-valuenow', String(Math.max(0, Math.floor(dead))));
	bar.setAttribute('aria-valuetext', duration(fence) + ' to the fence point, ' + duration(dead) + ' to the deadline');
	document.body.dataset.lease = fence <= 0 ? 'critical' : l.failure_streak > 0 || s.broker.up === 'down' ? 'warning' : 'ok';
	put('lease-note', lost() ? thenDeadline(l) : s.shadow ? 'Only supposed (--shadow): no key hangs on this lease.' :
		dead <= 0 ? 'The deadline has passed: etcd may have removed the registration, and other brokers may have taken over. Nothing may be served here.' :
		fence <= 0 ? 'The fence point has passed without a confirmed renewal: clients are kept away, and what still serves is stopped before the deadline.' :
		l.failure_streak > 0 ? plural(l.failure_streak, 'renewal') + ' in a row failed. Unless etcd confirms one, the broker is fenced at the fence point.' :
		s.broker.up === 'down' ? 'Not renewed while the broker is down: it runs out by itself.' : 'Renewals are confirmed; each moves both away again.');
}

// thenDeadline says what is sure without an answer: when the deadline was that we knew of.
function thenDeadline(l) {
	const seen = Date.parse(status.at), left = l.remaining_seconds - elapsed();
	return 'The last known deadline is ' + moment(seen + l.remaining_seconds * 1000) + ' (fence point ' + moment(seen + l.fence_in_seconds * 1000) + '). ' +
		(left > 0 ? 'It comes in ' + duration(left) + ' unless a renewal is confirmed.' : 'It would have passed ' + duration(-left) + ' ago unless a renewal was confirmed since.');
}

function icon(sev) {
	const svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><path fill="' + tints[sev] + '" d="' + shapes[sev] + '"/></svg>';
	const href = 'data:image/svg+xml,' + encodeURIComponent(svg);
	if (byId('icon').href !== href) byId('icon').href = href;
}

function head(s) {
	const gone = lost(), sev = gone ? 'none' : s.severity in words ? s.severity : 'none';
	document.body.dataset.severity = sev;
	byId('shape').setAttribute('d', shapes[sev]);
	icon(sev);
	put('severity', words[sev]);
	const e = entries.findLast(e => e.kind === 'readiness');
	const since = e && (e.to === 'ready') === s.ready.ok ? Date.parse(e.at) : 0;
	const clients = s.shadow ? 'nothing is done (--shadow)' : s.ready.ok ? 'clients may come' : 'clients are kept away';
	const age = since && !gone && !s.shadow ? ' since ' + moment(since) + ' (' + duration((Date.parse(s.at) - since) / 1000 + elapsed()) + ')' : '';
	put('clients', gone ? '– at ' + moment(Date.parse(s.at)) + ' it was: ' + words[s.severity] + ', ' + clients : '– ' + clients + age);
	put('sentence', s.summary);
	const name = s.broker_id || 'broker not found yet';
	const who = byId('who');
	if (who.dataset.is !== name + s.driver + s.broker.version) {
		who.dataset.is = name + s.driver + s.broker.version;
		who.replaceChildren(name, ' ', el('span', '', (s.driver + ' ' + s.broker.version).trim()));
	}
	document.title = (gone ? 'No answer' : words[sev]) + ': ' + name + ' – Holdfast';
	// Spoken when the state changes, not with each second that passes.
	const state = sev + s.ready.ok + s.summary.replace(/\d+/g, '');
	if (state !== heard) {
		heard = state;
		put('said', words[sev] + ', ' + clients + '. ' + s.summary);
	}
}

function link() {
	const gone = lost() || (status === null && failed !== '');
	const wait = Math.ceil((retryAt - now()) / 1000);
	const age = status && !polled ? duration(elapsed()) + ' ago; ' : '';
	const again = ' (' + age + 'trying again' + (wait > 0 ? ' in ' + wait + '\u00a0s)' : ')');
	document.body.toggleAttribute('data-lost', gone);
	put('link', gone ? 'No answer' : polled ? 'Not live' : status ? 'Live, ' + clock(Date.parse(status.at)) + ' UTC' : 'Connecting');
	const before = byId('lost').hidden;
	show('lost', gone || polled);
	if (!gone && !polled) return;
	const why = polled ? 'The sidecar answers, but all its live views are in use. This was true at ' + moment(Date.parse(status.at)) + '.' :
		refused ? refused : status ? 'No answer from the sidecar since ' + moment(Date.parse(status.at)) + '. What is below was true then.' :
		'No answer from the sidecar.';
	// Read aloud once; the countdown to the next try is only seen.
	const box = byId('lost');
	if (before || box.childNodes.length !== 2) box.replaceChildren(el('span'), el('span'));
	box.lastChild.setAttribute('aria-hidden', 'true');
	text(box.firstChild, why);
	text(box.lastChild, again);
}

function note(s, isNew) {
	const up = (Date.parse(s.at) - Date.parse(s.since)) / 1000;
	if (isNew) byId('note').dataset.since = s.since;
	show('note', byId('note').dataset.since === s.since && up < 600);
	put('note', 'The sidecar was started again at ' + moment(Date.parse(s.since)) + '.');
}

// awaits: the tab is hidden, or was shown just now, and what it knows is of before.
const awaits = () => document.hidden || at < shownAt && failed === '' && now() - shownAt < lostAfter * 1000;

function render() {
	if (awaits()) return;
	link();
	if (!status) return;
	head(status);
	countdown(status);
}

function onStatus(s) {
	const restarted = status !== null && status.since !== s.since;
	if (restarted && status.version !== s.version) return location.reload(); // this page is the old one's
	status = s;
	at = now();
	atWall = Date.now();
	failed = refused = '';
	tries = 0;
	if (restarted) forget();
	note(s, restarted);
	facts(s);
	topics(s);
	moves(s);
	causes(s);
	render();
	return restarted;
}

// forget drops the journal: a sidecar that was started again may have another one.
function forget() {
	entries = [];
	last = 0;
	timeline();
}

function entryNode(e) {
	const change = el('span', 'change', e.from ? plain(e.from) + ' → ' : '', el('b', '', plain(e.to)), e.reason ? ' (' + e.reason + ')' : '');
	const when = el('time', '', clock(Date.parse(e.at)));
	when.dateTime = e.at;
	when.title = new Date(e.at).toLocaleString() + ' here';
	const id = el('span', 'id', '#' + e.id), line = el('p', 'head', el('span', 'what', when, ' ', el('span', 'quiet', e.kind), ' ', change), id);
	const li = el('li', '', line);
	li.dataset.tone = e.kind === 'fence' || e.kind === 'readiness' && e.to !== 'ready' ? tone(e.to) || 'warning' : tone(e.to);
	if (e.detail) li.append(el('p', '', e.detail));
	if (e.why) {
		const dl = el('dl', 'more', row('Why', e.why));
		if (e.avoid && !e.avoid.startsWith('Nothing to avoid')) dl.append(row('To avoid it', e.avoid));
		if (e.next) dl.append(row('Do', e.next));
		const button = el('button', 'why', 'Why');
		button.type = 'button';
		button.setAttribute('aria-expanded', 'false');
		button.setAttribute('aria-label', 'Why event ' + e.id);
		dl.hidden = true;
		button.addEventListener('click', () => {
			dl.hidden = !dl.hidden;
			button.setAttribute('aria-expanded', String(!dl.hidden));
		});
		id.append(button);
		li.append(dl);
	}
	return li;
}

// timeline makes nodes only for what is new, so that what was opened stays open.
const nodes = new Map();
function timeline() {
	const from = Math.max(0, entries.length - (all ? kept : shown));
	const list = [], seen = new Set();
	let date = '';
	for (const e of entries.slice(from).reverse()) {
		const d = day(Date.parse(e.at));
		if (d !== date) {
			date = d;
			if (!nodes.has(d)) nodes.set(d, el('li', 'day', d));
			list.push(nodes.get(d));
			seen.add(d);
		}
		if (!nodes.has(e.id)) nodes.set(e.id, entryNode(e));
		list.push(nodes.get(e.id));
		seen.add(e.id);
	}
	for (const key of nodes.keys()) if (!seen.has(key)) nodes.delete(key);
	const ol = byId('entries');
	for (const child of [...ol.children]) if (!list.includes(child)) child.remove();
	list.forEach((n, i) => { if (ol.children[i] !== n) ol.insertBefore(n, ol.children[i] || null); });
	show('empty', entries.length === 0);
	show('more', from > 0);
	put('more', 'Show ' + plural(from, 'older entry').replace('entrys', 'entries'));
}
let pending = false;
function onEntry(e) {
	if (e.id <= last) return;
	last = e.id;
	entries.push(e);
	if (entries.length > kept) entries = entries.slice(-kept);
	if (pending) return;
	pending = true; // many may come at once
	queueMicrotask(() => {
		pending = false;
		timeline();
		if (status) causes(status);
		render();
	});
}

// listen reads one stream to its end.
async function listen() {
	stop = new AbortController();
	const began = now();
	stop.began = began;
	const headers = {Accept: 'text/event-stream'};
	if (last > 0) headers['Last-Event-ID'] = String(last);
	const answer = await fetch(here + 'api/events', {headers, signal: stop.signal, cache: 'no-store'});
	if (!answer.ok) {
		refused = answer.status === 503 ? '' : 'The sidecar refuses this browser (' + answer.status + '). Reload the page to log in again.';
		polled = answer.status === 503 && await look();
		throw new Error('status ' + answer.status);
	}
	polled = false;
	const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
	for (let rest = ''; ;) {
		const {value, done} = await reader.read();
		if (done) return;
		const blocks = (rest + value).split('\n\n');
		rest = blocks.pop();
		for (const block of blocks) {
			let event = '', data = '';
			for (const line of block.split('\n')) {
				if (line.startsWith('event: ')) event = line.slice(7);
				if (line.startsWith('data: ')) data += line.slice(6);
			}
			if (event === 'status' && onStatus(JSON.parse(data))) { stop.abort(); return; }
			if (event === 'journal') onEntry(JSON.parse(data));
		}
	}
}

// look asks once, where no stream is to be had.
async function look() {
	const answer = await fetch(here + 'api/status', {signal: stop.signal, cache: 'no-store'});
	if (!answer.ok) return false;
	onStatus(await answer.json());
	return true;
}

let wake = () => {};
async function follow() {
	for (;;) {
		while (document.hidden) await new Promise(go => { wake = go; });
		try {
			await listen();
			if (tries > 0) failed = 'ended';
		} catch (err) {
			if (!polled && !document.hidden) failed = String(err);
		}
		const pause = (polled ? 5 : Math.min(10, 0.4 * 2 ** tries)) * (0.8 + 0.4 * Math.random());
		tries++;
		retryAt = now() + pause * 1000;
		render();
		await new Promise(go => { wake = go; setTimeout(go, pause * 1000); });
	}
}

byId('more').addEventListener('click', () => { all = true; timeline(); });
for (const event of ['online', 'pageshow']) addEventListener(event, () => wake());
// A hidden tab gives its stream back: a browser has six connections to a host for all its tabs.
document.addEventListener('visibilitychange', () => {
	if (document.hidden) {
		if (stop) stop.abort();
		icon('none');
		document.title = 'Not followed: ' + (status && status.broker_id || 'broker') + ' – Holdfast';
		return;
	}
	shownAt = now();
	wake();
});
setInterval(() => {
	// A connection may hang without an end, and so may the way to one.
	if (stop && !polled && now() - Math.max(at, stop.began) > 2 * lostAfter * 1000) stop.abort();
	render();
}, 250);
follow();
})();
