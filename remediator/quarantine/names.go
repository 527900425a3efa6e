package quarantine

import "github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"

// ControllerName is the remediator's name in Events, in managed fields and in the labels of its objects.
const ControllerName = handoff.FieldManager
