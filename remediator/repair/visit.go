package repair

import "github.com/pitcrew-dev/pitcrew/remediator/repair/visit"

// These names of package visit are used here and by those who read its records.
type (
	Record  = visit.Record
	Visit   = visit.Visit
	Kind    = visit.Kind
	Phase   = visit.Phase
	Action  = visit.Action
	Checked = visit.Checked
	Request = visit.Request
	Advice  = visit.Advice
)

// These are the constants of package visit, see there.
const (
	Sweep, Repair, Validation, FirstCheck                    = visit.Sweep, visit.Repair, visit.Validation, visit.FirstCheck
	Emptying, Working, Ending, Proving                       = visit.Emptying, visit.Working, visit.Ending, visit.Proving
	Passed, Failed, Refused, Yielded                         = visit.Passed, visit.Failed, visit.Refused, visit.Yielded
	RequestRepair, RequestStop, RequestCheck, RequestRelease = visit.RequestRepair, visit.RequestStop, visit.RequestCheck, visit.RequestRelease
	AdviseReturn, AdviseReboot, AdviseReplace                = visit.AdviseReturn, visit.AdviseReboot, visit.AdviseReplace
)

// These are functions of package visit, see there.
var (
	RecordOf    = visit.RecordOf
	ParseRecord = visit.ParseRecord
	Ask         = visit.Ask
	Strip       = visit.Strip
	OrphanOf    = visit.OrphanOf
	Unfinished  = visit.Unfinished
)
