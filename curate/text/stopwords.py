"""English words without a meaning of interest, although WordNet has most of them as nouns or verbs ("a" is angstrom,
"in" indium, "he" helium, "us" the United States, "don" a teacher): function words, parts of contractions, and short
words of other languages and of chemistry that web texts use differently ("la", "de", "el", "al").
"""

from __future__ import annotations

_TEXT = """
a about above across after again against ago all almost along already also although always am among an and another
any anybody anyone anything anyway are around as at away back be became because become becomes been before behind
being below beneath beside besides between beyond both but by can cannot could did do does doing done down during
each either else enough ever every everybody everyone everything except far few for from further get gets getting
go goes got had has have having he hence her here hers herself him himself his how however i if in indeed inside
instead into is it its itself just keep keeps kept least less let lets like made make makes making many may maybe
me might mine more moreover most much must my myself near need needs neither never next no nobody none nor not
nothing now nowhere of off often on once one ones only onto or other others our ours ourselves out outside over own
per perhaps please put quite rather really same say says see seem seems several shall she should since so some
somebody somehow someone something sometimes somewhere still such than that the their theirs them themselves then
there therefore these they thing things this those though through throughout thus till to together too toward
towards under unless until up upon us use used uses using very via was way we well went were what whatever when
where whether which while who whoever whole whom whose why will with within without would yes yet you your yours
yourself yourselves
ain aren couldn didn doesn don hadn hasn haven isn ll ma mightn mustn needn re shan shouldn ve wasn weren won
wouldn
ad ag al ar au ba be bi br ca cd ce cl co cr cs cu da das de del den der des di du ed el en er es et eu fe fr ga
ge hg ho il im ir la las le les li lo los lu md mg mm mn mo na nb nd ne ni np oh os pa pb pd pm po pr pt pu ra rb
rh rn ru sb sc se si sm sn sr st ta tb te th ti tl tm um un una und une von xe yb zn zr
"""
STOP_WORDS = frozenset(_TEXT.split())
