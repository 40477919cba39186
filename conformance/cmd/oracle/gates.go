package main

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// gatesLock keeps questions that change feature gates apart from all others: the
// gates belong to the whole process.
var gatesLock sync.RWMutex

// setFeatureGates sets these gates until the returned function is called. A gate
// that this version does not know yet is off.
func setFeatureGates(wanted map[string]bool) (restore func(), err error) {
	gatesLock.RLock()
	before, changed, err := gateChanges(wanted)
	if err == nil && len(changed) == 0 {
		return gatesLock.RUnlock, nil
	}
	gatesLock.RUnlock()
	if err != nil {
		return nil, err
	}
	// Whoever changes them restores them before the lock is free.
	gatesLock.Lock()
	restore = func() {
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(before); err != nil {
			panic(err)
		}
		gatesLock.Unlock()
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(changed); err != nil {
		restore()
		return nil, err
	}
	return restore, nil
}

// gateChanges returns the gates that do not have the wanted values, before and
// after a change.
func gateChanges(wanted map[string]bool) (before, changed map[string]bool, err error) {
	before, changed = make(map[string]bool), make(map[string]bool)
	gates := utilfeature.DefaultMutableFeatureGate
	known := sets.KeySet(gates.GetAll())
	for name, enabled := range wanted {
		feature := featuregate.Feature(name)
		if !known.Has(feature) {
			if enabled {
				return nil, nil, fmt.Errorf("unknown feature gate %q", name)
			}
		} else if is := gates.Enabled(feature); is != enabled {
			before[name], changed[name] = is, enabled
		}
	}
	return before, changed, nil
}
