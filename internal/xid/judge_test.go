package xid

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// log builds a State from lines `<seconds> <body without NVRM>`; the GPU is written as a or b.
func log(t *testing.T, lines ...string) *State {
	t.Helper()
	s := &State{}
	for _, line := range lines {
		at, body, _ := strings.Cut(line, " ")
		seconds, err := time.ParseDuration(at + "s")
		if err != nil {
			t.Fatal(err)
		}
		if code, found := strings.CutPrefix(body, "a "); found {
			body = "Xid (PCI:0000:0a:00): " + code
		} else if code, found := strings.CutPrefix(body, "b "); found {
			body = "Xid (PCI:0000:0b:00): " + code
		}
		if code, found := strings.CutPrefix(body, "switch "); found {
			body = "nvidia-nvswitch1: SXid (PCI:0000:05:00.0): " + code
		} else if _, whole := Parse(body); !whole {
			body = "NVRM: " + body
		}
		e, ok := Parse(body)
		if !ok {
			t.Fatalf("%q is not understood", body)
		}
		e.At = seconds
		s.Add(e)
	}
	return s
}

const (
	resetRequired = "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
	none          = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
	unload        = "nvidia-nvlink: Unregistered Nvlink Core, major device number 236"
	driverLoad    = "loading NVIDIA UNIX x86_64 Kernel Module  570.86.15"
)

func ecc74(link int) string {
	return fmt.Sprintf("a 74, NVLink: fatal error detected on link %d(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", link)
}

// short shortens a subject: gpu a, switch link.
func short(subject string) string {
	return strings.NewReplacer("gpu 0000:0", "", "nvswitch 0000:0", "switch ", ":00", "").Replace(subject)
}

func to(action string) string { return "154, GPU recovery action changed from 0x0 (None) to " + action }

func TestJudge(t *testing.T) {
	const later = 3600 * 100
	tests := map[string]struct {
		lines []string
		now   float64 // seconds
		want  string
	}{
		"nothing":                      {nil, later, ""},
		"79 at once":                   {[]string{"1 a 79, x"}, 1, "Reboot a Xid 79 GPU has fallen off the bus"},
		"79 and its line are one":      {[]string{"1 a 79, x", "1 GPU 0000:0a:00.0: GPU has fallen off the bus."}, 1, "Reboot a Xid 79 GPU has fallen off the bus"},
		"its line alone":               {[]string{"1 GPU 0000:0a:00.0: GPU has fallen off the bus."}, 1, "Reboot a GPU has fallen off the bus"},
		"RmInitAdapter":                {[]string{"1 GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)"}, 1, "Reboot a RmInitAdapter failed (0x24:0x72:1568)"},
		"95 at once":                   {[]string{"1 a 95, x"}, 1, "ResetGPU a Xid 95 uncontained ECC error"},
		"119 at once":                  {[]string{"1 a 119, x"}, 1, "ResetGPU a Xid 119 GSP RPC timeout"},
		"63":                           {[]string{"1 a 63, x"}, 1, "Monitor a Xid 63 row remapping event"},
		"64":                           {[]string{"1 a 64, x"}, 1, "ResetGPU a Xid 64 row remapping failure"},
		"94":                           {[]string{"1 a 94, x"}, 1, "RestartApp a Xid 94 contained ECC error"},
		"13":                           {[]string{"1 a 13, x"}, 1, "RestartApp a Xid 13 Graphics Engine Exception"},
		"31":                           {[]string{"1 a 31, x"}, 1, "RestartApp a Xid 31 GPU memory page fault"},
		"43":                           {[]string{"1 a 43, x"}, 1, "Monitor a Xid 43 GPU stopped processing"},
		"a number that is in no table": {[]string{"1 a 4711, x"}, 1, "Inspect a Xid 4711 not in the catalogue"},
		"two GPUs":                     {[]string{"1 b 119, x", "2 a 79, x"}, 2, "Reboot a Xid 79 GPU has fallen off the bus, ResetGPU b Xid 119 GSP RPC timeout"},
		"the worst class of a GPU":     {[]string{"1 a 119, x", "2 a 79, x", "3 a 31, x"}, 3, "Reboot a Xid 79 GPU has fallen off the bus"},
		"the first of equal classes":   {[]string{"1 a 119, x", "2 a 95, x"}, 2, "ResetGPU a Xid 119 GSP RPC timeout"},

		"48 settling":                 {[]string{"10 a 48, x"}, 11.9, ""},
		"48 alone":                    {[]string{"10 a 48, x"}, 12, "ResetGPU a Xid 48 double bit ECC error"},
		"48 with 94":                  {[]string{"10 a 48, x", "10.1 a 63, x", "10.2 a 94, x"}, 12, "RestartApp a Xid 48 double bit ECC error"},
		"48 after 94":                 {[]string{"9 a 94, x", "10 a 48, x"}, 12, "RestartApp a Xid 94 contained ECC error"},
		"48 with 94 and 64":           {[]string{"10 a 94, x", "10 a 48, x", "10 a 64, x"}, 12, "ResetGPU a Xid 48 double bit ECC error"},
		"48 with 94 and 95":           {[]string{"10 a 94, x", "10 a 48, x", "11 a 95, x"}, 13, "ResetGPU a Xid 48 double bit ECC error"},
		"48 with a 94 long before":    {[]string{"1 a 94, x", "10 a 48, x"}, 12, "ResetGPU a Xid 48 double bit ECC error"},
		"48 with another GPU's 94":    {[]string{"10 b 94, x", "10 a 48, x"}, 12, "ResetGPU a Xid 48 double bit ECC error, RestartApp b Xid 94 contained ECC error"},
		"a later 48 without its 94":   {[]string{"10 a 48, x", "10 a 94, x", "20 a 48, x"}, 22, "ResetGPU a Xid 48 double bit ECC error"},
		"a 48 from the future counts": {[]string{"10 a 48, x"}, 5, "ResetGPU a Xid 48 double bit ECC error"},
		"95 does not wait for a 48":   {[]string{"10 a 48, x", "10 a 95, x"}, 10, "ResetGPU a Xid 95 uncontained ECC error"},

		"45 settling":                 {[]string{"10 a 45, Ch 1 caused by previous Xid 119"}, 11, ""},
		"45 alone":                    {[]string{"10 a 45, Ch 1"}, later, "Monitor a Xid 45 preemptive cleanup after an earlier error"},
		"45 caused by 31":             {[]string{"10 a 45, Ch 1 caused by previous Xid 31"}, later, "RestartApp a Xid 45 preemptive cleanup after an earlier error, caused by Xid 31"},
		"45 caused by 119":            {[]string{"10 a 45, Ch 1 caused by previous Xid 119"}, later, "ResetGPU a Xid 45 preemptive cleanup after an earlier error, caused by Xid 119"},
		"45 caused by NVLink5":        {[]string{"10 a 45, Ch 1 caused by previous Xid 149"}, later, "Inspect a Xid 45 preemptive cleanup after an earlier error, caused by Xid 149"},
		"45 caused by a contained 48": {[]string{"8 a 48, x", "8 a 94, x", "10 a 45, Ch 1 caused by previous Xid 48"}, later, "RestartApp a Xid 48 double bit ECC error"},
		"45 caused by a harmless 74":  {[]string{"8 a 74, link 14(0x1)", "10 a 45, Ch 1 caused by previous Xid 74"}, later, "Monitor a Xid 74 NVLink error on link 14"},
		"45 caused by 45":             {[]string{"10 a 45, Ch 1 caused by previous Xid 45"}, later, "Monitor a Xid 45 preemptive cleanup after an earlier error, caused by Xid 45"},
		"45 caused by an unknown":     {[]string{"10 a 45, Ch 1 caused by previous Xid 4711"}, later, "Inspect a Xid 45 preemptive cleanup after an earlier error, caused by Xid 4711"},
		"a burst of 45 on many GPUs":  {[]string{"10 a 45, Ch 1", "10 b 45, Ch 1", "11 a 45, Ch 2", "11 b 45, Ch 2"}, later, "Monitor a Xid 45 preemptive cleanup after an earlier error, Monitor b Xid 45 preemptive cleanup after an earlier error"},

		"154 None":                  {[]string{"1 a " + none}, 1, ""},
		"154 GPU reset":             {[]string{"1 a " + resetRequired}, 1, "ResetGPU a Xid 154 recovery action GPU Reset"},
		"154 node reboot":           {[]string{"1 a " + to("0x2 (Node Reboot Required)")}, 1, "Reboot a Xid 154 recovery action Node Reboot"},
		"154 drain P2P":             {[]string{"1 a " + to("0x3 (Drain P2P)")}, 1, "RestartApp a Xid 154 recovery action Drain P2P"},
		"154 drain and reset":       {[]string{"1 a " + to("0x4 (Drain and Reset)")}, 1, "ResetGPU a Xid 154 recovery action Drain and Reset"},
		"154 IMEX":                  {[]string{"1 a " + to("0x5 (Recover IMEX Domain)")}, 1, "Inspect a Xid 154 recovery action Recover IMEX Domain"},
		"154 bus reset":             {[]string{"1 a " + to("0x6 (Bus Reset)")}, 1, "ResetGPU a Xid 154 recovery action Bus Reset"},
		"154 system reboot":         {[]string{"1 a " + to("0x7 (OS Reboot)")}, 1, "Reboot a Xid 154 recovery action System Reboot"},
		"154 the number goes first": {[]string{"1 a " + to("0x2 (GPU Reset Required)")}, 1, "Reboot a Xid 154 recovery action Node Reboot"},
		"154 the name helps out":    {[]string{"1 a " + to("0x9 (PF FLR)")}, 1, "ResetGPU a Xid 154 recovery action GPU Reset"},
		"154 neither is known":      {[]string{"1 a " + to("0x9 (Pray)")}, 1, "Inspect a Xid 154 recovery action Pray"},
		"154 cut short":             {[]string{"1 a 154, GPU recovery action changed from 0x0 (No"}, 1, "Inspect a Xid 154 recovery action not understood"},
		"154 never lowers":          {[]string{"1 a 79, x", "2 a " + resetRequired}, 2, "Reboot a Xid 79 GPU has fallen off the bus"},
		"154 raises":                {[]string{"1 a 94, x", "2 a " + resetRequired}, 2, "ResetGPU a Xid 154 recovery action GPU Reset"},

		"154 None clears a reset":       {[]string{"1 a 119, x", "2 a " + resetRequired, "3 a " + none}, 3, ""},
		"154 None clears only its GPU":  {[]string{"1 a 119, x", "1 b 119, x", "3 a " + none}, 3, "ResetGPU b Xid 119 GSP RPC timeout"},
		"154 None clears no reboot":     {[]string{"1 a 79, x", "3 a " + none}, 3, "Reboot a Xid 79 GPU has fallen off the bus"},
		"a driver load clears resets":   {[]string{"1 a 119, x", "1 b 4711, x", "3 " + driverLoad}, 3, ""},
		"a driver load clears no 79":    {[]string{"1 a 79, x", "3 " + driverLoad}, 3, "Reboot a Xid 79 GPU has fallen off the bus"},
		"a fault after the driver load": {[]string{"1 a 119, x", "3 " + driverLoad, "4 a 119, x"}, 4, "ResetGPU a Xid 119 GSP RPC timeout"},
		"what the driver says at boot":  {[]string{"1 " + driverLoad}, 1, ""},

		"74 without registers":   {[]string{"1 a 74, NVLink: fatal error detected on link 14"}, 1, "ResetGPU a Xid 74 NVLink error on link 14"},
		"74 mechanical":          {[]string{"1 a 74, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"}, 1, "ResetGPU a Xid 74 NVLink error on link 14"},
		"74 harmless":            {[]string{"1 a 74, NVLink: fatal error detected on link 14(0x40900003, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"}, 1, "Monitor a Xid 74 NVLink error on link 14"},
		"74 a bit of no table":   {[]string{"1 a 74, NVLink: fatal error detected on link 14(0x4, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"}, 1, "Inspect a Xid 74 NVLink error on link 14, bits that no table has"},
		"74 a register of data":  {[]string{"1 a 74, NVLink: fatal error detected on link 14(0x1, 0x10000, 0x0, 0x0, 0x0, 0x10000, 0x10000)"}, 1, "Monitor a Xid 74 NVLink error on link 14"},
		"74 ECC twice":           {[]string{"1 " + ecc74(14), "1000 " + ecc74(14)}, later, "Monitor a Xid 74 NVLink error on link 14"},
		"74 ECC three times":     {[]string{"1 " + ecc74(14), "1000 " + ecc74(14), "2000 " + ecc74(14)}, later, "Inspect a Xid 74 NVLink error on link 14, more than two ECC errors within 24 hours"},
		"74 ECC on three links":  {[]string{"1 " + ecc74(14), "1000 " + ecc74(15), "2000 " + ecc74(16)}, later, "Monitor a Xid 74 NVLink error on link 14"},
		"74 ECC in three days":   {[]string{"1 " + ecc74(14), "45000 " + ecc74(14), "87000 " + ecc74(14)}, later, "Monitor a Xid 74 NVLink error on link 14"},
		"74 again after a reset": {[]string{"1 a 74, link 14(0x100)", "500 " + driverLoad, "1000 a 74, link 14(0x100)"}, later, "ResetGPU a Xid 74 NVLink error on link 14, again within 24 hours, inspect it too"},

		"NVLink5 by the table":            {[]string{"1 a 145, pid=1, name=x, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x0)"}, 1, "Monitor a Xid 145 NVLINK: RLW Error RLW_RXPIPE Nonfatal on link 13"},
		"NVLink5 a reset by the table":    {[]string{"1 a 144, SAW_MVB Fatal XC0 i0 Link 3 (0x00000021 0x00000002 0x0)"}, 1, "ResetGPU a Xid 144 NVLINK: SAW Error SAW_MVB Fatal on link 3"},
		"NVLink5 the newer layout":        {[]string{"1 a 144, SAW_MVB Nonfatal XC0 i0 Link 3 (0x00000001 0x00000002 0x0)"}, 1, "ResetGPU a Xid 144 NVLINK: SAW Error SAW_MVB Nonfatal on link 3"},
		"NVLink5 the line's fatal":        {[]string{"1 a 149, NETIR_INT  Fatal   XC0 i0 Link -1"}, 1, "ResetGPU a Xid 149 NVLINK: NETIR Error NETIR_INT Fatal"},
		"NVLink5 the line's link fatal":   {[]string{"1 a 149, NETIR_WHAT Link Fatal XC0 i0 Link 4 (0x1 0x2)"}, 1, "ResetGPU a Xid 149 NVLINK: NETIR Error NETIR_WHAT Link Fatal on link 4"},
		"NVLink5 the line's non-fatal":    {[]string{"1 a 149, NETIR_WHAT Non-fatal XC0 i0 Link 4 (0x1 0x2)"}, 1, "Monitor a Xid 149 NVLINK: NETIR Error NETIR_WHAT Non-fatal on link 4"},
		"NVLink5 no word":                 {[]string{"1 a 149, something else"}, 1, "Inspect a Xid 149 NVLINK: NETIR Error"},
		"a 149 after a 145":               {[]string{"1 a 145, RLW_REMAP Fatal XC0 i0 Link 3", "3 a 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 4"}, 3, "ResetGPU a Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4"},
		"a 145 after a 149":               {[]string{"1 a 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 4", "3 a 145, RLW_REMAP Fatal XC0 i0 Link 3"}, 3, "ResetGPU a Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4"},
		"a milder 149 after a 145":        {[]string{"1 a 145, RLW_REMAP Fatal XC0 i0 Link 3", "3 a 149, NETIR_WHAT Non-fatal XC0 i0 Link 4"}, 3, "ResetGPU a Xid 145 NVLINK: RLW Error RLW_REMAP Fatal on link 3"},
		"the GPU's own fault after a 145": {[]string{"1 a 145, RLW_REMAP Fatal XC0 i0 Link 3", "3 a 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!", "4 a 145, RLW_REMAP Fatal XC0 i0 Link 5"}, 4, "ResetGPU a Xid 119 GSP RPC timeout"},
		"a 149 after another fault":       {[]string{"1 a 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!", "3 a 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 4"}, 3, "ResetGPU a Xid 149 NVLINK: NETIR Error NETIR_LINK_DOWN Fatal on link 4"},
		"NVLink5 left to a 154":           {[]string{"1 a 145, RLW_REMAP Nonfatal XC0 i0 Link 3 (0x00000044 0x00000001)", "3 a " + resetRequired}, 3, "ResetGPU a Xid 154 recovery action GPU Reset"},
		"45 caused by NVLink5's reset":    {[]string{"1 a 149, NETIR_INT Fatal XC0 i0 Link 1", "1 a " + none, "1 a 149, NETIR_INT Fatal XC0 i0 Link 1", "10 a 45, Ch 1 caused by previous Xid 149"}, later, "ResetGPU a Xid 149 NVLINK: NETIR Error NETIR_INT Fatal on link 1"},
		"45 caused by NVLink5's nothing":  {[]string{"1 a 149, NETIR_WHAT Non-fatal XC0 i0 Link 4", "10 a 45, Ch 1 caused by previous Xid 149"}, later, "Inspect a Xid 45 preemptive cleanup after an earlier error, caused by Xid 149"},

		"SXid fatal with a restart":       {[]string{"1 switch 22003, Fatal, Link 32 ingress invalid command"}, 1, "Reboot switch 5 link 32 SXid 22003 Fatal ingress invalid command"},
		"SXid fatal":                      {[]string{"1 switch 11001, Fatal, Link 32 ingress invalid command (First)"}, 1, "ResetGPU switch 5 link 32 SXid 11001 Fatal ingress invalid command"},
		"SXid fatal but not documented":   {[]string{"1 switch 29999, Fatal, Link 32 new"}, 1, "ResetGPU switch 5 link 32 SXid 29999 Fatal new"},
		"SXid fatal by word only":         {[]string{"1 switch 24001, Fatal, Link 32 x"}, 1, "ResetGPU switch 5 link 32 SXid 24001 Fatal x"},
		"SXid non-fatal by word":          {[]string{"1 switch 22003, Non-fatal, Link 32 x"}, 1, "Monitor switch 5 link 32 SXid 22003 Non-fatal x"},
		"SXid non-fatal":                  {[]string{"1 switch 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"}, 1, "Monitor switch 5 link 32 SXid 12028 Non-fatal egress non-posted PRIV error"},
		"SXid check cabling":              {[]string{"1 switch 20012, Non-fatal, Link 32 x"}, 1, "Inspect switch 5 link 32 SXid 20012 Non-fatal x"},
		"SXid without a link":             {[]string{"1 switch 10003, Fatal, host interrupt, instance=0, chiplet=0"}, 1, "ResetGPU switch 5 SXid 10003 Fatal host interrupt, instance=0, chiplet=0"},
		"SXid without a word":             {[]string{"1 switch 20034, LTSSM"}, later, "Inspect switch 5 SXid 20034 LTSSM"},
		"a link down":                     {[]string{"100 switch 20034, Fatal, Link 48 LTSSM Fault Up"}, later, "ResetGPU switch 5 link 48 SXid 20034 Fatal LTSSM Fault Up"},
		"a link down, settling":           {[]string{"100 switch 20034, Fatal, Link 48 LTSSM Fault Up"}, 101, ""},
		"a link down by an unload":        {[]string{"100 switch 20034, Fatal, Link 48 LTSSM Fault Up", "101 " + unload}, later, "Monitor switch 5 link 48 SXid 20034 Fatal LTSSM Fault Up, the driver was unloaded"},
		"a link down after an unload":     {[]string{"100 " + unload, "129 switch 20034, Fatal, Link 48 LTSSM Fault Up"}, later, "Monitor switch 5 link 48 SXid 20034 Fatal LTSSM Fault Up, the driver was unloaded"},
		"a link down long after":          {[]string{"100 " + unload, "131 switch 20034, Fatal, Link 48 LTSSM Fault Up"}, later, "ResetGPU switch 5 link 48 SXid 20034 Fatal LTSSM Fault Up"},
		"SXids latch until a driver load": {[]string{"1 switch 11001, Fatal, Link 32 x", "2 " + driverLoad}, 3, ""},
		"a switch's reboot stays":         {[]string{"1 switch 22003, Fatal, Link 32 x", "2 " + driverLoad}, 3, "Reboot switch 5 link 32 SXid 22003 Fatal x"},
		"peermem":                         {[]string{"1 nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"}, 1, "Monitor nvidia-peermem invalid context"},

		"31 recurring": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "3800 a 31, pid=3, name=x, y"}, later,
			"Inspect a Xid 31 GPU memory page fault, recurring with several applications",
		},
		"31 recurring within a day": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "86399 a 31, pid=3, name=x, y"}, later,
			"Inspect a Xid 31 GPU memory page fault, recurring with several applications",
		},
		"31 recurring in more than a day": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "86401 a 31, pid=3, name=x, y"}, later,
			"RestartApp a Xid 31 GPU memory page fault",
		},
		// What was found stays, however much later another application fails.
		"31 recurring, then once more after a week": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "3800 a 31, pid=3, name=x, y", "604800 a 31, pid=4, name=x, y"}, later,
			"Inspect a Xid 31 GPU memory page fault, recurring with several applications",
		},
		"31 recurring with one application": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=x, y", "3800 a 31, pid=3, name=x, y"}, later, "RestartApp a Xid 31 GPU memory page fault",
		},
		"31 recurring with applications that nobody knows": {
			[]string{"0 a 31, pid=1, name=<unknown>, y", "1900 a 31, pid=2, name=x, y", "3800 a 31, x"}, later, "RestartApp a Xid 31 GPU memory page fault",
		},
		"31 in quick succession": {
			[]string{"0 a 31, pid=1, name=x, y", "1000 a 31, pid=2, name=z, y", "2000 a 31, pid=3, name=x, y"}, later, "RestartApp a Xid 31 GPU memory page fault",
		},
		"31 everywhere": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "2000 b 31, pid=2, name=z, y", "3800 a 31, pid=3, name=x, y"}, later,
			"RestartApp a Xid 31 GPU memory page fault, RestartApp b Xid 31 GPU memory page fault",
		},
		"31 before and after a reset": {
			[]string{"0 a 31, pid=1, name=x, y", "1900 a 31, pid=2, name=z, y", "2000 a " + none, "3800 a 31, pid=3, name=x, y"}, later, "RestartApp a Xid 31 GPU memory page fault",
		},
		"13 recurring at one place": {
			[]string{"0 a 13, pid=1, name=x, on (GPC 1, TPC 2, SM 0)", "1900 a 13, pid=2, name=z, on (GPC 1, TPC 2, SM 1)", "3800 a 13, pid=3, name=x, on (GPC 1, TPC 2, SM 0)"}, later,
			"Inspect a Xid 13 Graphics Engine Exception, recurring with several applications",
		},
		"13 at several places": {
			[]string{"0 a 13, pid=1, name=x, on (GPC 1, TPC 2, SM 0)", "1900 a 13, pid=2, name=z, on (GPC 2, TPC 2, SM 1)", "3800 a 13, pid=3, name=x, on (GPC 1, TPC 2, SM 0)"}, later,
			"RestartApp a Xid 13 Graphics Engine Exception",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := log(t, test.lines...)
			var got []string
			for _, f := range (Case{Events: s.Events, Now: time.Duration(test.now * float64(time.Second))}).Judge() {
				got = append(got, fmt.Sprint(f.Repair, " ", short(f.Subject), " ", f.Text))
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), test.want)
			}
		})
	}
}

func TestInjectedRecordsSaySo(t *testing.T) {
	e, _ := Parse("NVRM: Xid (PCI:0000:0a:00): 79, x")
	e.Injected = true
	s := State{}
	s.Add(e)
	if got := (Case{Events: s.Events}).Judge()[0].Text; got != "Xid 79 GPU has fallen off the bus (injected)" {
		t.Error(got)
	}
	if !s.DropInjected() || len(s.Events) != 0 || s.DropInjected() {
		t.Errorf("injected records were not dropped once: %+v", s)
	}
}

func TestABurstIsOneEvent(t *testing.T) {
	var lines []string
	for i := range 5000 {
		lines = append(lines, fmt.Sprintf("%d a 31, pid=%d, name=x, channel %x", i, i, i))
	}
	lines = append(lines, "6000 a 31, pid=1, name=x, y")
	s := log(t, lines...)
	if len(s.Events) != 2 || s.Events[0].Count != 5000 || s.Events[0].Last != 4999*time.Second {
		t.Errorf("%d events, first %+v", len(s.Events), s.Events[0])
	}
}

func TestTheStateIsBoundedAndTheWorstStays(t *testing.T) {
	s := log(t, "1 a 79, x")
	for i := range 3 * maxEvents {
		e, _ := Parse(fmt.Sprintf("NVRM: Xid (PCI:0000:0b:00): 31, pid=1, name=app%d, y", i))
		e.At = time.Duration(i) * time.Second
		s.Add(e)
	}
	if n := len(s.Events); n > maxEvents || n <= maxEvents-droppedOnce || n+s.Dropped != 3*maxEvents+1 {
		t.Errorf("%d events, %d dropped", n, s.Dropped)
	}
	for i, e := range s.Events[1:] { // of equal ones the oldest are gone, and the others are in order
		if want := time.Duration(3*maxEvents-len(s.Events)+1+i) * time.Second; e.At != want {
			t.Fatalf("event %d is of %s, not %s", i, e.At, want)
		}
	}
	if f := (Case{Events: s.Events}).Judge()[0]; f.Code != 79 {
		t.Errorf("the worst was dropped: %+v", f)
	}
}

func TestClearTakesHardwareOrAllElse(t *testing.T) {
	s := log(t, "1 a 79, x")
	e, _ := Parse("EDAC MC0: 1 UE memory read error on DIMM")
	s.Add(e)
	if got := s.Clear("", true, 9); len(got) != 1 || got[0] != "memory 0 DIMM" {
		t.Errorf("cleared %q", got)
	}
	if got := s.Clear("", false, 9); len(got) != 1 || got[0] != "gpu 0000:0a:00" {
		t.Errorf("cleared %q", got)
	}
}

func TestClear(t *testing.T) {
	s := log(t, "1 a 79, x", "1 b 119, x", "2 "+driverLoad, "3 b 95, x")
	if got := s.Clear("0000:0c", false, 9); got != nil {
		t.Errorf("cleared %q", got)
	}
	if got := s.Clear("gpu 0000:0a:00", false, 9); len(got) != 1 || got[0] != "gpu 0000:0a:00" {
		t.Errorf("cleared %q", got)
	}
	if got := s.Clear("", false, 9); len(got) != 1 || got[0] != "gpu 0000:0b:00" {
		t.Errorf("cleared %q", got)
	}
	if faults := (Case{Events: s.Events, Now: time.Hour}).Judge(); len(faults) != 0 {
		t.Errorf("still %+v", faults)
	}
}

func TestUncontainedErrorsOfAnA100(t *testing.T) {
	whole := log(t, "1 a 95, x")
	slice := log(t, "1 Xid (PCI:0000:0a:00 GPU-I:05): 95, x")
	for name, test := range map[string]struct {
		state *State
		gpu   GPU
		want  conditions.Repair
	}{
		"A100":                 {whole, GPU{Model: "NVIDIA A100-SXM4-80GB"}, conditions.Reboot},
		"A100 with MIG":        {whole, GPU{Model: "NVIDIA A100-SXM4-80GB", MIG: true}, conditions.ResetGPU},
		"A100, the line's MIG": {slice, GPU{Model: "NVIDIA A100-SXM4-80GB"}, conditions.ResetGPU},
		"H100":                 {whole, GPU{Model: "NVIDIA H100 80GB HBM3"}, conditions.ResetGPU},
		"unknown":              {whole, GPU{}, conditions.ResetGPU},
	} {
		t.Run(name, func(t *testing.T) {
			faults := (Case{Events: test.state.Events, GPUs: map[string]GPU{"0000:0a:00": test.gpu}}).Judge()
			if len(faults) != 1 || faults[0].Repair != test.want {
				t.Errorf("%+v, want %s", faults, test.want)
			}
		})
	}
}

func TestOverridesReplaceTheRules(t *testing.T) {
	overrides, err := ParseOverrides([]byte("kind,code,repair,note\n# ours\nxid,63,Inspect,we look at each\nxid,79,Replace,leased\nlost,0,Inspect,\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := log(t, "1 a 63, x", "1 b 79, x", "1 GPU 0000:0c:00.0: GPU has fallen off the bus.")
	var got []string
	for _, f := range (Case{Events: s.Events, Overrides: overrides}).Judge() {
		got = append(got, fmt.Sprint(f.Repair, " ", short(f.Subject)))
	}
	if want := "Replace b, Inspect a, Inspect c"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParseOverridesIsStrict(t *testing.T) {
	const head = "kind,code,repair,note\n"
	for name, data := range map[string]string{
		"empty":            "",
		"no header":        "xid,63,Inspect,x\n",
		"unknown kind":     head + "sxyd,63,Inspect,x\n",
		"unknown class":    head + "xid,63,Explode,x\n",
		"code is a word":   head + "xid,all,Inspect,x\n",
		"negative code":    head + "xid,-1,Inspect,x\n",
		"twice":            head + "xid,63,Inspect,x\nxid,63,Reboot,x\n",
		"a column missing": head + "xid,63,Inspect\n",
	} {
		t.Run(name, func(t *testing.T) {
			if o, err := ParseOverrides([]byte(data)); err == nil {
				t.Errorf("accepted as %+v", o)
			}
		})
	}
}

func TestAFaultOfSeveralBootsSaysSo(t *testing.T) {
	first := log(t, "1 a 119, x", "1 b 31, x", "2 "+driverLoad, "3 a 119, x")
	second := first.NextBoot()
	if len(second.Events) != 0 || len(second.History) != 1 {
		t.Fatalf("the second boot starts with %+v", second)
	}
	second.Events = log(t, "1 a 119, x", "1 b 119, x").Events
	third := second.NextBoot()
	third.Events = log(t, "1 a 119, x", "1 b 95, x").Events
	faults := (Case{Events: third.Events}).Judge()
	third.Remember(faults)
	if faults[0].SeenBoots != 3 || faults[1].SeenBoots != 0 {
		t.Errorf("%+v", faults)
	}
}

func TestTheHistoryIsBounded(t *testing.T) {
	var s State
	for i := range 3 * maxHistory {
		s.Events = log(t, fmt.Sprintf("1 Xid (PCI:0000:%02x:00): 79, x", i%256)).Events
		s = s.NextBoot()
	}
	if len(s.History) != maxHistory {
		t.Errorf("%d rows", len(s.History))
	}
}

func TestEventsFromAnotherLogComeFirst(t *testing.T) {
	s := log(t, "5 "+driverLoad, "6 b 119, x")
	s.Begin(4 * time.Second)
	s.ReadOn(*s.Reading, *log(t, "1 a 119, x", "2 b 79, x"), true)
	faults := (Case{Events: s.Events, Now: time.Hour}).Judge()
	if len(faults) != 1 || faults[0].Subject != "gpu 0000:0b:00" || faults[0].Code != 79 {
		t.Errorf("the driver load in between does not clear what came before: %+v", faults)
	}
}

func TestIdentify(t *testing.T) {
	gpu, uuid, ok := ParseIdentity("NVRM: GPU at PCI:0000:4E:00: GPU-8f3c0d6e-0000-0000-0000-000000000000")
	if !ok || gpu != "0000:4e:00" || uuid != "GPU-8f3c0d6e-0000-0000-0000-000000000000" {
		t.Errorf("%q %q %v", gpu, uuid, ok)
	}
	var s State
	for i := range 2 * maxUUIDs {
		s.Identify(fmt.Sprint(i), uuid)
	}
	if len(s.UUIDs) != maxUUIDs || s.Identify("0", uuid) || !s.Identify("0", "GPU-other") {
		t.Errorf("%d UUIDs", len(s.UUIDs))
	}
}

func TestAGPUThatNeedsNoResetAnyMore(t *testing.T) {
	s := log(t, "10 a 119, x", "10 b 119, x", "20 a 79, x", "30 a 95, x",
		"40 Xid (PCI:0000:0c:00): 119, x", "70 Xid (PCI:0000:0c:00): 119, y")
	recovered := map[string]time.Duration{"0000:0a:00": 50 * time.Second, "0000:0c:00": 50 * time.Second}
	var got []string
	for _, f := range (Case{Events: s.Events, Now: time.Hour, Recovered: recovered}).Judge() {
		got = append(got, fmt.Sprint(f.Repair, " ", short(f.Subject)))
	}
	// A reset mends no Reboot, no other GPU, and nothing that is said again after it.
	if want := "Reboot a, ResetGPU b, ResetGPU c"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s = log(t, "10 a 119, x", "20 a 31, pid=1, name=x, y")
	if faults := (Case{Events: s.Events, Now: time.Hour, Recovered: recovered}).Judge(); len(faults) != 0 {
		t.Errorf("%+v", faults)
	}
}

func TestClearingEventsCrowdNothingOut(t *testing.T) {
	var lines []string
	for i := range 2 * maxEvents {
		lines = append(lines, fmt.Sprintf("%d %s", 1000*i, driverLoad), fmt.Sprintf("%d a %s", 1000*i+1, none))
	}
	s := log(t, append(lines, fmt.Sprintf("%d b 79, x", 1000*2*maxEvents))...)
	if len(s.Events) != 3 || s.Dropped != 0 {
		t.Errorf("%d events, %d dropped", len(s.Events), s.Dropped)
	}
}

func TestSettlingGoesByWhenTheLineWasRead(t *testing.T) {
	// The kernel's clock is 50 s behind ours, which drift makes of a month.
	s := log(t, "10 a 48, x")
	s.Events[0].Seen = 60 * time.Second
	for now, want := range map[time.Duration]int{61 * time.Second: 0, 62 * time.Second: 1} {
		c := Case{Events: s.Events, Now: now}
		if got := len(c.Judge()); got != want {
			t.Errorf("%s: %d faults, want %d", now, got, want)
		}
		if got := c.Settled(); got != 62*time.Second-now {
			t.Errorf("%s: settled in %s", now, got)
		}
	}
	old := log(t, "10 a 48, x")
	old.Events[0].Seen = time.Hour
	if got := len((Case{Events: old.Events, Now: time.Hour}).Judge()); got != 1 {
		t.Error("a line from an hour ago settles")
	}
}
