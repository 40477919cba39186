s#https://127\.0\.0\.1:[0-9]+#SERVER#g
s/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/UID/g
s/20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z/TIME/g
s/[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} 20[0-9]{2} [0-9:]+ \+0000/TIME/g
s/^W[0-9]{4} [0-9:.]+ +[0-9]+ /WARNING /
s/^(    targetPort): [0-9]{4,5}$/\1: PORT/
s/resourceVersion: "?[0-9]+"?/resourceVersion: RV/g
s/"resourceVersion": ?"[0-9]+"/"resourceVersion":"RV"/g
s/current: [0-9]+/current: N/
s/(ExternalName +<none>|CLUSTER-IP|10\.96\.[0-9]+\.[0-9]+) {2,}/\1 /g
s/10\.96\.[0-9]+\.[0-9]+/IP/g
s/\b([0-9]+m?[0-9]*s|[2-9]m)\b( *)/AGE /g
s/3[0-2][0-9]{3}\b/NP/g
s/eyJ[A-Za-z0-9_.-]+/TOKEN/g
s/"resourceVersion": "[0-9]+"/"resourceVersion": "RV"/g
s/(Resource Version: +)[0-9]+/\1RV/
s/resourceVersion:[0-9]+/resourceVersion:RV/g
