"""The report's style sheet: readable on a phone, in the dark, and on paper."""

STYLE = """
:root{--ink:#1c2330;--soft:#5b6576;--line:#dfe4ec;--paper:#fff;--back:#f4f6f9;--ours:#0b62c4;--peer:#d98200;
--good:#0b7a45;--bad:#b3261e;--goodback:#e3f4ea;--badback:#fbe9e7}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#9aa5b6;--line:#333b49;--paper:#1b212b;--back:#12161d;
--ours:#6db1ff;--peer:#ffb547;--good:#5bd197;--bad:#ff8a80;--goodback:#12301f;--badback:#3a1815}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:20px 16px 60px}
header{border-radius:12px;padding:18px 22px;margin-bottom:14px}
header.pass{background:var(--goodback);border-left:8px solid var(--good)}
header.fail{background:var(--badback);border-left:8px solid var(--bad)}
header p{margin:4px 0}
.word{font-size:14px;font-weight:700;letter-spacing:.08em}
.pass .word,.ok{color:var(--good)}
.fail .word,.no,.bad,.cross{color:var(--bad);fill:var(--bad)}
h1{font-size:26px;margin:2px 0;overflow-wrap:anywhere}
h2{font-size:19px;margin:0 0 10px}
h3{font-size:16px;margin:14px 0 8px}
small{color:var(--soft);font-weight:400}
section{background:var(--paper);border:1px solid var(--line);border-radius:12px;padding:16px 18px;margin-top:16px}
.place{background:var(--badback);border-radius:8px;padding:10px 14px;overflow-wrap:anywhere}
.bad{margin:8px 0;padding-left:22px;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 16px;margin:12px 0 0}
dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--soft);font-weight:600;border-bottom:2px solid var(--line);padding:5px 10px 5px 0}
td{border-bottom:1px solid var(--line);padding:4px 10px 4px 0;vertical-align:top}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.ok,.no,.maybe{font-weight:700}
.maybe{color:var(--peer)}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(330px,1fr));gap:14px}
figure{margin:0}
figcaption{font-weight:600;margin-bottom:2px}
svg{width:100%;height:auto;display:block}
.grid{stroke:var(--line)}
.tick,.axis{fill:var(--soft);font-size:16px}
.line{fill:none;stroke-width:2}
.line.ours{stroke:var(--ours)}
.line.peer{stroke:var(--peer);stroke-dasharray:6 4}
.dot.ours{fill:var(--ours)}
.dot.peer{fill:var(--peer)}
.cross{font-size:15px;font-weight:700;text-anchor:middle}
.legend{color:var(--soft);margin:0 0 10px}
.key{display:inline-block;width:26px;height:0;border-top:3px solid var(--ours);vertical-align:middle;margin:0 4px 0 0}
.key.peer{border-top:3px dashed var(--peer);margin-left:14px}
details{border-bottom:1px solid var(--line);padding:5px 0}
summary{cursor:pointer}
@media (max-width:600px){dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:6px}main{padding:10px 8px 40px}
section{padding:12px 10px}.plots{grid-template-columns:1fr}}
@media print{body{background:#fff;font-size:11px}section{break-inside:auto;border:0;padding:0}
tr,figure,header{break-inside:avoid}.scroll{overflow:visible}table{font-size:10px}.plots{grid-template-columns:1fr 1fr}}
"""
